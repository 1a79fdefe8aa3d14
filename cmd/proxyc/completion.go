package main

import "embed"

// completionScripts are the scripts for shells. Each calls proxyc for candidates, so it works with
// every version.
//
//go:embed completion
var completionScripts embed.FS

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish,powershell" help:"Shell: bash, zsh, fish or powershell."`
}

func (c *completionCmd) Run(e *env) error {
	script, err := completionScripts.ReadFile("completion/proxyc." + c.Shell)
	if err != nil {
		return err
	}
	_, err = e.stdout.Write(script)
	return err
}

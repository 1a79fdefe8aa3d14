package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/config"
)

type configCmd struct {
	Defaults configDefaultsCmd `cmd:"" help:"Print a configuration with all defaults."`
	Validate configValidateCmd `cmd:"" help:"Check a configuration file."`
	Show     configShowCmd     `cmd:"" help:"Show the effective configuration, and the source of each value."`
}

type configDefaultsCmd struct{ configFlags }

func (c *configDefaultsCmd) Run(e *env) error {
	resolved, err := c.resolve(e)
	if err != nil {
		return err
	}
	data, err := config.WriteConfig(resolved.Config)
	if err == nil {
		_, err = e.stdout.Write(data)
	}
	return err
}

type configValidateCmd struct {
	File   string `arg:"" help:"Configuration file; - for standard input."`
	Strict bool   `help:"Report unknown and duplicate keys as errors."`
}

func (c *configValidateCmd) Run(e *env) error {
	in := configFlags{Strict: c.Strict}
	in.setConfig(c.File)
	resolved, err := in.resolve(e)
	if err != nil {
		return err
	}
	e.report(resolved.Advice())
	_, err = fmt.Fprintf(e.stdout, "%s: valid\n", c.File)
	return err
}

type configShowCmd struct {
	configFlags
	File    string         `arg:"" optional:"" help:"Configuration file; - for standard input."`
	Release config.Release `placeholder:"1.N" help:"Show the configuration under this release of kube-proxy."`
	Output  string         `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

func (c *configShowCmd) Run(e *env) error {
	c.release = c.Release
	if c.File != "" {
		c.setConfig(c.File)
	}
	resolved, err := c.resolve(e)
	if err != nil {
		return err
	}
	settings := config.Show(resolved)
	if c.Output == "json" {
		return review.WriteDocument(e.stdout, "Settings", "  ", settings)
	}
	return writeSettings(e.stdout, settings)
}

func writeSettings(w io.Writer, settings []config.Setting) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range settings {
		fmt.Fprintf(t, "%s\t%s\t# %s\n", s.Path, s.Value, s.Source)
	}
	return t.Flush()
}

package main

import (
	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

type versionCmd struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Output: text, or json with commit and date."`
}

func (c *versionCmd) Run(e *env) error {
	if c.Output == "json" {
		return review.WriteDocument(e.stdout, "Version", "  ", build.Read())
	}
	return build.Read().Write(e.stdout)
}

// versionFlag is --version, which also accepts kube-proxy's --version=raw.
type versionFlag bool

func (versionFlag) IsBool() bool { return true }

// Decode parses the value after "=".
func (v *versionFlag) Decode(ctx *kong.DecodeContext) error {
	on, err := help.SwitchOf(ctx, "raw")
	*v = versionFlag(on)
	return err
}

// BeforeReset ends the program before the rest of the command line is checked.
func (versionFlag) BeforeReset(app *kong.Kong, ctx *kong.Context, at *kong.Path) error {
	if on, ok := ctx.FlagValue(at.Flag).(versionFlag); ok && !bool(on) {
		return nil
	}
	if err := build.Read().Write(app.Stdout); err != nil {
		return err
	}
	app.Exit(exitDone)
	return nil
}

package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

type versionCmd struct{}

func (versionCmd) Run(e *env) error { return writeVersion(e.stdout) }

// writeVersion prints the module version that the Go tool put into the
// program, and what it was built with.
func writeVersion(w io.Writer) error {
	version := "(unknown)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	_, err := fmt.Fprintf(w, "proxyc %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// versionFlag is --version, which kube-proxy also takes as --version=raw.
type versionFlag bool

func (versionFlag) IsBool() bool { return true }

// Decode takes the value after "=".
func (v *versionFlag) Decode(ctx *kong.DecodeContext) error {
	on, err := switchOf(ctx, "raw")
	*v = versionFlag(on)
	return err
}

// BeforeReset ends the program before anything else is asked of the command line.
func (versionFlag) BeforeReset(app *kong.Kong, ctx *kong.Context, at *kong.Path) error {
	if on, ok := ctx.FlagValue(at.Flag).(versionFlag); ok && !bool(on) {
		return nil
	}
	if err := writeVersion(app.Stdout); err != nil {
		return err
	}
	app.Exit(exitDone)
	return nil
}

//go:build !windows

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// resolveHere resolves the flags. Only Windows has its own defaults.
func resolveHere(f *config.Flags, read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	return f.Resolve(read, strict)
}

// asService runs the daemon. Only Windows has a service control manager.
func asService(ctx context.Context, _ *env, _ bool, _ time.Duration, run func(context.Context) error) error {
	return run(ctx)
}

// setPriority does nothing: only Windows has priority classes.
func setPriority(class string) error {
	if class != "" {
		return errors.New("--windows-priorityclass: must be left out: this system is not Windows")
	}
	return nil
}

// needRoot returns an error if the user may not change the node's network.
func needRoot(verb string) error {
	switch {
	case runtime.GOOS != "linux":
		return errors.New("needs Linux or Windows: elsewhere proxyc compiles, traces and explains only")
	case os.Geteuid() != 0:
		return fmt.Errorf("%s: needs root, to read and write the node's rules", verb)
	}
	return nil
}

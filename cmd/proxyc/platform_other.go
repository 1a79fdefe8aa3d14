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
func resolveHere(f *config.Flags, release config.Release, read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	return f.ResolveFor(release, read, strict)
}

// asService runs the daemon. Only Windows has a service control manager.
func asService(ctx context.Context, _ *env, _ bool, _ time.Duration, run func(context.Context) error) error {
	return run(ctx)
}

// setPriority does nothing: only Windows has priority classes.
func setPriority(class string) error {
	if class != "" {
		return errors.New("--windows-priorityclass: is supported only on Windows")
	}
	return nil
}

// needRoot returns an error if the user may not change the node's network.
func needRoot(verb string) error {
	switch {
	case runtime.GOOS != "linux":
		return errors.New("requires Linux or Windows: other systems support only the offline verbs")
	case os.Geteuid() != 0:
		return fmt.Errorf("%s: requires root, to read and write the node's rules", verb)
	}
	return nil
}

//go:build !windows

package main

import (
	"context"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// resolveHere resolves the flags: only Windows has defaults of its own.
func resolveHere(f *config.Flags, read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	return f.Resolve(read, strict)
}

// asService runs the daemon: only Windows has a service control manager that it
// could belong to.
func asService(ctx context.Context, _ *env, _ *config.Config, run func(context.Context) error) error {
	return run(ctx)
}

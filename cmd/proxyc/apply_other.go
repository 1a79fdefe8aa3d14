//go:build !linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

const lockDir = "."

var errNotLinux = errors.New("needs Linux: elsewhere proxyc compiles, traces and explains only")

func needRoot(string) error { return errNotLinux }

type dataplane struct {
	once      func(ctx context.Context, approve func(apply.Plan) bool) (apply.Plan, error)
	leftovers func(ctx context.Context) ([]apply.Leftover, error)
	close     func() error
}

func openDataplane(context.Context, ir.Programs, string, time.Duration) (*dataplane, error) {
	return nil, errNotLinux
}

func allLeftovers(context.Context) ([]apply.Leftover, error) { return nil, errNotLinux }

func leftoversBeside(context.Context) ([]apply.Leftover, error) { return nil, errNotLinux }

//go:build !linux

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/ir"
)

type kernel struct {
	loop.Kernel
	mode      ir.Mode
	leftovers func(ctx context.Context) ([]apply.Leftover, error)
	suspect   <-chan struct{}
	close     func() error
	counters  packetCounters
}

func openKernel(context.Context, ir.Mode, string, time.Duration, *slog.Logger) (*kernel, error) {
	return nil, errNotLinux
}

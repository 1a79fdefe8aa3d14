//go:build !linux

package main

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// kernel returns an error: elsewhere than on Linux there are no such rules.
func (d *described) kernel(context.Context, ir.Programs, string) error {
	return errors.New("kernel: needs Linux")
}

// cameBy knows no routes.
func cameBy(pkt sim.Packet) sim.Packet { return pkt }

// inKernel returns an error, likewise.
func inKernel(context.Context, *ir.Program, sim.Packet, string) (refollow, []string, error) {
	return nil, nil, errors.New("--kernel: needs Linux")
}

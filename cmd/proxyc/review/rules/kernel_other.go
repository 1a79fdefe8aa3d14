//go:build !linux

package rules

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// withInterface returns the packet unchanged: routes are unknown.
func withInterface(pkt sim.Packet) sim.Packet { return pkt }

// inKernel returns an error: only Linux has the rules.
func inKernel(context.Context, *ir.Program, sim.Packet, string) (refollow, []string, error) {
	return nil, nil, errors.New("--kernel: requires Linux")
}

package main

import (
	"cmp"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/review/top"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
)

type topCmd struct{ top.Flags }

// Run shows the traffic of an interval.
func (c *topCmd) Run(e *env) (err error) {
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	return c.Flags.Run(ctx, cmp.Or(c.Socket, host.DaemonSocket()), e.stdout)
}

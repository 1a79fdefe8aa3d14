//go:build unix

package iptables

import (
	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/proxyc/proxyc/ir"
)

func (d *Dataplane) single(f ir.Family) (singleChains, error) {
	protocol := goiptables.ProtocolIPv4
	if f == ir.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	return goiptables.New(goiptables.IPFamily(protocol),
		goiptables.Path(d.tool(f)),
		goiptables.Timeout(d.waitSeconds()))
}

//go:build unix

package iptables

import (
	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

func (t *Target) singly(f ir.Family) (singleChains, error) {
	protocol := goiptables.ProtocolIPv4
	if f == ir.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	return goiptables.New(goiptables.IPFamily(protocol),
		goiptables.Path(rules.Tool(f)+"-"+string(t.Variant)),
		goiptables.Timeout(t.waitSeconds()))
}

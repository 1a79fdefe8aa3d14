//go:build unix

package iptables

import (
	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/proxyc/proxyc/ir"
)

// chainTool returns the tool of a family for single chains. goiptables.New runs the tool to read its
// version.
func (t *tools) chainTool(f ir.Family) (chainTool, error) {
	protocol := goiptables.ProtocolIPv4
	if f == ir.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	return goiptables.New(goiptables.IPFamily(protocol),
		goiptables.Path(t.tool(f)),
		goiptables.Timeout(t.waitSeconds()))
}

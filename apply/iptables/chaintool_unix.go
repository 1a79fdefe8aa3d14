//go:build unix

package iptables

import (
	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/proxyc/proxyc/ir"
)

// chainTool returns the tool of a family for single chains. It is cached, since creating one runs the
// tool for its version.
func (t *tools) chainTool(f ir.Family) (chainTool, error) {
	t.chainToolsMu.Lock()
	defer t.chainToolsMu.Unlock()
	if one := t.chainTools.Of(f); one != nil {
		return one, nil
	}
	protocol := goiptables.ProtocolIPv4
	if f == ir.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	one, err := goiptables.New(goiptables.IPFamily(protocol),
		goiptables.Path(t.tool(f)),
		goiptables.Timeout(t.waitSeconds()))
	if err != nil {
		return nil, err
	}
	*t.chainTools.At(f) = one
	return one, nil
}

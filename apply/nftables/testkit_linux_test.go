package nftables

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

func sameAddr(a, b netip.Addr) bool         { return a == b }
func sameAddrPort(a, b netip.AddrPort) bool { return a == b }
func samePrefix(a, b netip.Prefix) bool     { return a == b }

// planOf returns a Plan of one family.
func planOf(c *change) *Plan {
	p := &Plan{}
	*p.families.At(c.family) = c
	return p
}

// update plans changes of Services.
func update(l *rules.Lowerer, node *ir.Node, changes ...ir.Change) *change {
	return difference(l.Change(node, changes...))
}

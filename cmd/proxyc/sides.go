package main

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/nftables"
)

// ruleSides lower a Program to the rules of its mode, to be compared.
var ruleSides = map[ir.Mode]func(*ir.Program) prove.Side{
	ir.ModeIPTables: func(p *ir.Program) prove.Side { return iptables.NewEvaluator(iptables.Lower(p), ownOf(p)) },
	ir.ModeNFTables: func(p *ir.Program) prove.Side { return nftables.NewEvaluator(nftables.Lower(p), ownOf(p)) },
}

// ownOf returns the addresses of a Program's node.
func ownOf(p *ir.Program) *sim.Own { return sim.NewOwn(p.Family.Loopback(), p.Node.Addrs) }

// nodeOf returns what decides which packets a Program's node meets.
func nodeOf(p *ir.Program) prove.Node {
	n := prove.Node{Family: p.Family, Addrs: p.Node.Addrs}
	if p.Node.Mode.Capabilities().Has(ir.CarriesVIPs) {
		n.Carries = func(a netip.Addr) bool { return carries(p, a) }
	}
	return n
}

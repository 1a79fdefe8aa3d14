package userspace

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// Eval leads the first packet of a connection through the rules, and, where
// they bring it to a listener, through the proxy process: every backend sees
// the node as the client, and without backends the connection is closed, which
// counts as a refusal. local reports the node's own addresses.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	first := "PREROUTING"
	if pkt.FromNode() {
		first = "OUTPUT"
	}
	p := r.Rules.Walker(sim.OwnOf(local), nil).Nat(first, iptables.Packet{Packet: pkt})[0] // one, as nothing is left to chance
	l := r.listener(&p, local)
	if l == nil {
		return sim.Outcome{}
	}
	if len(l.Backends) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	ds := make([]sim.Destination, len(l.Backends))
	for i, b := range l.Backends {
		ds[i] = sim.Destination{AddrPort: b, SNAT: true}
	}
	return sim.NewOutcome(l.Affinity > 0, ds)
}

// listener finds the listener that a packet arrives at.
func (r *Ruleset) listener(p *iptables.Packet, local func(netip.Addr) bool) *Listener {
	for i := range r.Listeners {
		l := &r.Listeners[i]
		at := l.Listen.Addr()
		arrives := p.Dst == at || at.IsUnspecified() && (p.Redirected || local(p.Dst))
		if arrives && l.Port.Protocol == p.Protocol && l.Listen.Port() == p.Port {
			return l
		}
	}
	return nil
}

package eval

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/userspace"
)

// Evaluator computes the outcomes of packets under an immutable Ruleset. It is
// safe for concurrent use.
type Evaluator struct {
	own       *sim.Own
	rules     *ipteval.Walker
	listeners map[ir.Match][]*userspace.Listener // by protocol and port
}

// NewEvaluator indexes a Ruleset. The cost is linear in its size.
func NewEvaluator(r *userspace.Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{own: own, rules: ipteval.NewWalker(r.Rules, own, nil), listeners: map[ir.Match][]*userspace.Listener{}}
	for i := range r.Listeners {
		l := &r.Listeners[i]
		key := ir.Match{Protocol: l.Port.Protocol, Port: l.Listen.Port()}
		e.listeners[key] = append(e.listeners[key], l)
	}
	return e
}

// Destinations calls add with the prefixes with which destinations are compared,
// possibly with duplicates.
func (e *Evaluator) Destinations(add func(netip.Prefix)) { e.rules.Destinations(add) }

// Outcome evaluates the rules for the first packet of a connection, and then the
// proxy process if they redirect it to a listener. Every backend receives the
// node as the client. Without backends the connection is closed, which counts as
// a rejection. Outcome records in cuts the constants with which it compared the
// packet.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	first := "PREROUTING"
	if pkt.FromNode() {
		first = "OUTPUT"
	}
	p := e.rules.Nat(first, ipteval.Packet{Packet: pkt, Cuts: cuts})[0] // a single result, because no rule matches at random
	l := e.listener(&p)
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

// listener returns the listener to which rules redirect a packet, or nil. As in
// kube-proxy, a client that connects directly to a proxy port of the node is
// served, too. This is not counted, because no Service requests it.
func (e *Evaluator) listener(p *ipteval.Packet) *userspace.Listener {
	if !p.DNAT {
		return nil
	}
	for _, l := range e.listeners[ir.Match{Protocol: p.Protocol, Port: p.Port}] {
		if at := l.Listen.Addr(); p.Dst == at || at.IsUnspecified() && (p.Redirected || e.own.Has(p.Dst)) {
			return l
		}
	}
	return nil
}

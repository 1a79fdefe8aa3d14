package eval

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/userspace"
)

// Evaluator answers for many packets what a Ruleset does to them, which does not
// change. It may be asked by several goroutines.
type Evaluator struct {
	own       *sim.Own
	rules     *ipteval.Walker
	listeners map[ir.Match][]*userspace.Listener // by protocol and port
}

// NewEvaluator indexes a Ruleset, which costs what it holds.
func NewEvaluator(r *userspace.Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{own: own, rules: ipteval.NewWalker(r.Rules, own, nil), listeners: map[ir.Match][]*userspace.Listener{}}
	for i := range r.Listeners {
		l := &r.Listeners[i]
		key := ir.Match{Protocol: l.Port.Protocol, Port: l.Listen.Port()}
		e.listeners[key] = append(e.listeners[key], l)
	}
	return e
}

// Destinations calls yield for the prefixes that destinations of packets are
// compared with, some of them several times.
func (e *Evaluator) Destinations(yield func(netip.Prefix) bool) { e.rules.Destinations(yield) }

// Outcome leads the first packet of a connection through the rules, and, where
// they bring it to a listener, through the proxy process: every backend sees
// the node as the client, and without backends the connection is closed, which
// counts as a refusal. It reports to cuts
// what the packet was compared with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	first := "PREROUTING"
	if pkt.FromNode() {
		first = "OUTPUT"
	}
	p := e.rules.Nat(first, ipteval.Packet{Packet: pkt, Cuts: cuts})[0] // one, as nothing is left to chance
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

// listener finds the listener that rules lead a packet to. Whoever finds out the
// number of a proxy port and connects to it on the node is served as well, as
// with kube-proxy; no Service asks for that, so that it counts for nobody's.
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

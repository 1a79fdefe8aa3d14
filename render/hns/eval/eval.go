package eval

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/hns"
)

// Evaluator answers for many packets what a Ruleset does to them, which does not
// change. It may be asked by several goroutines.
type Evaluator struct {
	own       *sim.Own
	at        map[ir.Match]*hns.LoadBalancer // the first of each
	ports     map[ir.Match][]uint16          // of those, by address and protocol
	endpoints map[string]*hns.Endpoint       // by Ref
}

// NewEvaluator indexes a Ruleset, which costs what it holds.
func NewEvaluator(r *hns.Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{own: own, at: map[ir.Match]*hns.LoadBalancer{}, ports: map[ir.Match][]uint16{}, endpoints: map[string]*hns.Endpoint{}}
	for i := range r.LoadBalancers {
		l := &r.LoadBalancers[i]
		if e.at[l.Match] != nil || l.Kind == hns.HealthCheck {
			continue
		}
		e.at[l.Match] = l
		list := ir.Match{Addr: l.Match.Addr, Protocol: l.Match.Protocol}
		e.ports[list] = append(e.ports[list], l.Match.Port)
	}
	for i := range r.Endpoints {
		if x := &r.Endpoints[i]; e.endpoints[x.Ref] == nil {
			e.endpoints[x.Ref] = x
		}
	}
	return e
}

// Destinations calls yield for the prefixes that destinations of packets are
// compared with, some of them several times.
func (e *Evaluator) Destinations(yield func(netip.Prefix) bool) {
	for _, p := range e.own.Prefixes() {
		if !yield(p) {
			return
		}
	}
	for m := range e.at {
		if m.Addr.IsValid() && !yield(netip.PrefixFrom(m.Addr, m.Addr.BitLen())) {
			return
		}
	}
}

// Outcome looks the first packet of a connection up among the load balancers,
// those of the address before those of every address. HNS keeps the client's
// address, but for a pod that reaches itself. Health checks, which the node
// answers, count as not ours. It reports to cuts
// what the packet was compared with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	lb := e.loadBalancer(pkt.Dst, pkt, cuts)
	if lb == nil && e.own.Has(pkt.Dst) && !pkt.Dst.IsLoopback() {
		lb = e.loadBalancer(netip.Addr{}, pkt, cuts)
	}
	if lb == nil {
		return sim.Outcome{}
	}
	var ds []sim.Destination
	for _, ref := range lb.Endpoints() {
		x := e.endpoints[ref]
		if x == nil {
			continue
		}
		d := sim.Destination{AddrPort: netip.AddrPortFrom(x.Address, lb.HCN.PortMappings[0].InternalPort)}
		if x.Role == hns.LocalPod {
			cuts.SourceAddr(x.Address)
			d.SNAT = x.Address == pkt.Src
		}
		ds = append(ds, d)
	}
	return sim.NewOutcome(lb.HCN.PortMappings[0].DistributionType == hns.SourceIP, ds)
}

// loadBalancer finds the one of an address for a packet.
func (e *Evaluator) loadBalancer(addr netip.Addr, pkt sim.Packet, cuts *sim.Cuts) *hns.LoadBalancer {
	cuts.PortsOf(e.ports[ir.Match{Addr: addr, Protocol: pkt.Protocol}])
	return e.at[ir.Match{Addr: addr, Protocol: pkt.Protocol, Port: pkt.Port}]
}

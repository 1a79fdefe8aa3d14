package eval

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/hns"
)

// Evaluator computes the outcomes of packets under an immutable Ruleset. It is
// safe for concurrent use.
type Evaluator struct {
	own       *sim.Own
	at        map[ir.Match]*hns.LoadBalancer // the first of each
	ports     map[ir.Match][]uint16          // ports of these, by address and protocol
	endpoints map[string]*hns.Endpoint       // by Ref
}

// NewEvaluator indexes a Ruleset. The cost is linear in its size.
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

// Destinations calls add with the prefixes with which destinations are compared,
// possibly with duplicates.
func (e *Evaluator) Destinations(add func(netip.Prefix)) {
	e.own.Prefixes(add)
	for m := range e.at {
		if m.Addr.IsValid() {
			add(netip.PrefixFrom(m.Addr, m.Addr.BitLen()))
		}
	}
}

// Outcome looks up the load balancer for the first packet of a connection; one
// with an address takes precedence over one for all addresses. HNS keeps the
// client's address, except for a pod that connects to itself. Health checks,
// which the node answers, are not ours. Outcome records in cuts the constants
// with which it compared the packet.
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

// loadBalancer returns the load balancer of an address for a packet, or nil.
func (e *Evaluator) loadBalancer(addr netip.Addr, pkt sim.Packet, cuts *sim.Cuts) *hns.LoadBalancer {
	cuts.PortsOf(e.ports[ir.Match{Addr: addr, Protocol: pkt.Protocol}])
	return e.at[ir.Match{Addr: addr, Protocol: pkt.Protocol, Port: pkt.Port}]
}

package hns

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Eval looks the first packet of a connection up among the load balancers,
// those of the address before those of every address. HNS keeps the client's
// address, but for a pod that reaches itself. Health checks, which the node
// answers, count as not ours. local reports the node's own addresses.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	lb := r.loadBalancer(ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port})
	if lb == nil && local(pkt.Dst) && !pkt.Dst.IsLoopback() {
		lb = r.loadBalancer(ir.Match{Protocol: pkt.Protocol, Port: pkt.Port})
	}
	if lb == nil {
		return sim.Outcome{}
	}
	var ds []sim.Destination
	for _, ref := range lb.Endpoints() {
		e := r.endpoint(ref)
		if e == nil {
			continue
		}
		ds = append(ds, sim.Destination{
			AddrPort: netip.AddrPortFrom(e.Address, lb.HCN.PortMappings[0].InternalPort),
			SNAT:     e.Role == LocalPod && e.Address == pkt.Src,
		})
	}
	return sim.NewOutcome(lb.HCN.PortMappings[0].DistributionType == SourceIP, ds)
}

func (r *Ruleset) loadBalancer(m ir.Match) *LoadBalancer {
	for i := range r.LoadBalancers {
		if l := &r.LoadBalancers[i]; l.Match == m && l.Kind != HealthCheck {
			return l
		}
	}
	return nil
}

func (r *Ruleset) endpoint(ref string) *Endpoint {
	for i := range r.Endpoints {
		if r.Endpoints[i].Ref == ref {
			return &r.Endpoints[i]
		}
	}
	return nil
}

package compiler

import "github.com/proxyc/proxyc/ir"

// kept adds the endpoints of a UDP port that serve and that none of the picks,
// of which its pools are made, takes. Policies, hints and termination are about
// new clients (DMN-30).
func (b *builder) kept(p *port, picks *[ir.Local + 1]pick, endpoints []endpoint) {
	if p.Protocol != ir.UDP || !b.t.caps.Has(ir.Topology) { // other modes hold their clients themselves
		return
	}
	var backends []ir.Backend
	for i := range endpoints {
		e := &endpoints[i]
		if e.Serving && !b.t.takes(picks[ir.Cluster], e) && !b.t.takes(picks[ir.Local], e) {
			backends = append(backends, ir.Backend{
				AddrPort: e.addrPort, Local: b.t.isLocal(e), Origin: b.t.origin(e, keptReason(e))})
		}
	}
	if len(backends) > 0 {
		b.out.Kept = append(b.out.Kept, ir.Kept{Port: p.ServicePort, Backends: backends,
			Origin: ir.Origin{Object: b.s.object, Field: b.t.names.ports.at(p.index), Reason: "for clients that they have"}})
	}
}

// keptReason tells people why an endpoint keeps its clients and gets no others.
func keptReason(e *endpoint) string {
	switch {
	case e.Terminating:
		return "serving and terminating"
	case !e.Ready:
		return "serving, not ready"
	}
	return "ready, not for this node"
}

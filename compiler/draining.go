package compiler

import "github.com/proxyc/proxyc/ir"

// draining adds the serving endpoints of a UDP port that are in none of the
// selections of its pools. They keep their existing clients: policies, hints and
// termination affect only new clients (DMN-30).
func (b *builder) draining(p *port, selections *[ir.Local + 1]selection, endpoints []endpoint) {
	if p.Protocol != ir.UDP || !b.t.caps.Has(ir.Topology) { // other modes keep client state themselves
		return
	}
	var backends []ir.Backend
	for i := range endpoints {
		e := &endpoints[i]
		if e.Serving && !b.t.selects(selections[ir.Cluster], e) && !b.t.selects(selections[ir.Local], e) {
			backends = append(backends, ir.Backend{
				AddrPort: e.addrPort, Local: b.t.isLocal(e), Origin: b.t.origin(e, drainingReason(e))})
		}
	}
	if len(backends) > 0 {
		b.out.Draining = append(b.out.Draining, ir.Draining{Port: p.ServicePort, Backends: backends,
			Origin: ir.Origin{Object: b.s.object, Field: b.t.names.ports.at(p.index), Reason: "for clients that they have"}})
	}
}

// drainingReason returns why an endpoint keeps its clients and gets no new ones.
func drainingReason(e *endpoint) string {
	switch {
	case e.Terminating:
		return "serving and terminating"
	case !e.Ready:
		return "serving, not ready"
	}
	return "ready, not for this node"
}

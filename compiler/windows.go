package compiler

import (
	"net/netip"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// windowsChoice returns the endpoints that mode kernelspace uses for frontends of
// one kind: ready ones, without hints. If all endpoints behind a load balancer
// are terminating, the serving ones remain for its addresses and the ClusterIP,
// or all if none serves. Other frontends then have none (WIN-22).
func (t *nodeTarget) windowsChoice(s *service, v *view, kind ir.Kind, endpoints []endpoint) endpointChoice {
	r := ready
	if v.addrs[len(v.addrs)-1].kind == ir.LoadBalancer {
		scope := func(c criterion) int { return t.selection(c, s.ExternalLocal, endpoints).n }
		switch {
		case scope(serving) == 0:
			r = every
		case scope(lasting) == 0:
			r = serving
		}
	}
	c := endpointChoice{usable: t.selection(r, false, endpoints).n > 0}
	if r == ready || kind == ir.ClusterIP || kind == ir.LoadBalancer {
		c.cluster, c.local = t.selection(r, false, endpoints), t.selection(r, true, endpoints)
	}
	return c
}

// windowsPolicy returns the traffic policy of a kind of frontend in mode
// kernelspace. Annotation preserve-destination requires local endpoints (WIN-12).
func windowsPolicy(s *service, kind ir.Kind) ir.Policy {
	if (kind == ir.NodePort || kind == ir.LoadBalancer) && s.PreserveDIP {
		return ir.Local
	}
	return s.policy(kind)
}

// windowsPorts sets the same port on all endpoints of a service port, as HNS
// requires. It is the port of the last usable endpoint, sorted by the text of its
// address, whatever targetPort is (WIN-21).
func (c *cluster) windowsPorts(s *service, v *view) {
	for i, list := range v.endpoints {
		from := windowsPort(list)
		if from == nil {
			continue
		}
		differ := false
		for j := range list {
			e := &list[j]
			differ = differ || e.addrPort.Port() != from.addrPort.Port() && e.Ready
			e.addrPort = netip.AddrPortFrom(e.addrPort.Addr(), from.addrPort.Port())
		}
		if differ {
			s.warn(diag.ModePorts, c.names.ports.at(s.ports[i].index)+".targetPort", "endpoints have different ports: mode kernelspace uses "+
				strconv.Itoa(int(from.addrPort.Port()))+" of "+from.addrPort.String()+" for all")
		}
		v.endpoints[i] = c.mergeDuplicates(s, list)
	}
}

// windowsPort returns a copy of the endpoint whose port is used, or nil.
func windowsPort(list []endpoint) *endpoint {
	var last endpoint
	best := -1
	for _, e := range list {
		rank := 0
		switch {
		case e.Ready && e.Serving:
			rank = 2
		case e.Serving:
			rank = 1
		}
		if rank >= best {
			best, last = rank, e
		}
	}
	if best < 0 {
		return nil
	}
	return &last
}

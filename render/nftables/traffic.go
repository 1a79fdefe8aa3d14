package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// CountedSets returns the sets whose elements count connections, if a table counts them. Each new
// connection finds its frontend in ServiceIPs or ServicePorts, unless no source has a route.
func CountedSets() []SetID {
	return []SetID{ServiceIPs, ServicePorts, NoEndpointIPs, NoEndpointPorts, ClusterIPs, RestrictedIPs}
}

// CountServices defines whether the table counts the connections of Services. Only declarations
// differ. The Ruleset must have all fixed sets.
func (r *Ruleset) CountServices(counts bool) {
	for _, id := range CountedSets() {
		r.Sets[id].Counter = counts
	}
}

// CountsServices reports whether a table that was read counts connections.
func (r *Ruleset) CountsServices() bool {
	return slices.ContainsFunc(r.Sets, func(s Set) bool { return s.Counter })
}

// Counted returns what the counter of an element counts; false if its frontend is unknown.
func (s SetID) Counted(k Key, of render.Frontends) (c render.Counted, ok bool) {
	f := of[ir.Match{Addr: k.Addr, Protocol: k.Proto, Port: k.Port}]
	if f == nil {
		return c, false
	}
	switch s {
	case NoEndpointIPs, NoEndpointPorts:
		dispatched := len(f.Routes) > 0 || len(f.SourceRanges) > 0 && !admitsAll(outermost(f.SourceRanges))
		return render.Count(f, !dispatched, render.Unrouted(f)), true
	case RestrictedIPs:
		return render.Count(f, false, render.SourceRanges), true
	case ClusterIPs:
		c.Port.Service, c.Connections, c.Reason = f.Port.Service, true, render.UndeclaredPort
		return c, true
	}
	return render.Count(f, true, render.Admitted), true
}

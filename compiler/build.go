package compiler

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// nodeTarget is a node in one family, for which Services are compiled.
type nodeTarget struct {
	*cluster
	family ir.Family
	node   *ir.Node
	onNode string // "on node node1", for reasons
	routes map[routeKey][]ir.Route
	hosted map[netip.Addr]struct{} // kernelspace only: endpoints that HNS reports as local
}

func newTarget(c *cluster, family ir.Family, node *ir.Node, facts *Facts) *nodeTarget {
	t := &nodeTarget{cluster: c, family: family, node: node, onNode: "on this node"}
	if node.HNS != nil {
		t.hosted = facts.HNSEndpoints
	}
	if node.Name != "" {
		t.onNode = "on node " + node.Name
	}
	t.routes = t.routeTable()
	return t
}

// compile returns the compiled Service, or nil if it has no ClusterIP or no port
// in the target's family.
func (t *nodeTarget) compile(s *service) *ir.Service {
	v := s.views.At(t.family)
	if !v.has(ir.ClusterIP) || len(s.ports) == 0 {
		return nil
	}
	frontends := len(s.ports) * len(v.addrs)
	for i := range s.ports {
		count(&frontends, s.ports[i].nodePort != 0)
	}
	b := builder{
		t: t, s: s, v: v,
		affinity: s.affinityPass(),
		ranges:   t.firewallPass(v),
		out: &ir.Service{
			Name:      s.Name,
			Frontends: make([]ir.Frontend, 0, frontends),
			Pools:     make([]ir.Pool, 0, len(s.ports)),
			Health:    t.healthPass(s, v),
			Origin:    ir.Origin{Object: s.object},
		},
	}
	if t.node.HNS != nil {
		b.out.HNS = &ir.HNSService{ExternalLocal: s.ExternalLocal, PreserveDIP: s.PreserveDIP, NoOptimize: s.NoOptimize}
	}
	for i := range s.ports {
		b.port(&s.ports[i], v.endpoints[i], v.overs(i))
	}
	slices.SortFunc(b.out.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) }) // pools are created in canonical order
	return b.out
}

// builder assembles one Service in one family.
type builder struct {
	t        *nodeTarget
	s        *service
	v        *view
	affinity *ir.Affinity
	ranges   []ir.SourceRange
	out      *ir.Service
}

// policy returns the traffic policy for a kind of frontend. externalTrafficPolicy
// applies only to Services that are reachable from outside (SNAP-27).
func (s *service) policy(kind ir.Kind) ir.Policy {
	local := s.InternalLocal
	if kind.External() {
		local = s.ExternalLocal && externallyAccessible(s.Service)
	}
	if local {
		return ir.Local
	}
	return ir.Cluster
}

// externallyAccessible reports whether externalTrafficPolicy applies to a
// Service. The decision uses its type and fields before any filter (traffic
// policies, SNAP-27).
func externallyAccessible(s *snapshot.Service) bool {
	return s.Type == "NodePort" || s.Type == "LoadBalancer" || len(s.ExternalIPs) > 0
}

// kindRoutes is how frontends of one kind forward traffic.
type kindRoutes struct {
	policy          ir.Policy
	routes          []ir.Route
	selections      [ir.Local + 1]selection // the endpoints of the routes' pools, by policy
	otherwiseOrigin ir.Origin
	otherwise       ir.Verdict
}

// port adds the frontends and pools of one service port.
func (b *builder) port(p *port, endpoints []endpoint, over bool) {
	n := b.t.countEndpoints(endpoints)
	n.over = over
	var sendings [ir.NodePort + 1]kindRoutes
	var selections [ir.Local + 1]selection
	for kind := range sendings {
		if !b.v.has(ir.Kind(kind)) && (kind != int(ir.NodePort) || p.nodePort == 0) {
			continue
		}
		s := b.sending(ir.Kind(kind), p, &n, endpoints)
		for _, r := range s.routes {
			selections[r.Pool] = s.selections[r.Pool]
		}
		sendings[kind] = s
	}
	var index [len(selections)]int
	for policy, selected := range selections {
		if index[policy] = len(b.out.Pools); selected.n > 0 {
			b.pool(p, ir.Policy(policy), selected, &n, endpoints)
		}
	}
	b.draining(p, &selections, endpoints)
	for i := range sendings {
		sendings[i].routes = rebase(sendings[i].routes, index)
	}
	for i := range b.v.addrs {
		a := &b.v.addrs[i]
		b.frontend(p, a.kind, ir.Match{Addr: a.Addr, Protocol: p.Protocol, Port: p.number},
			ir.Origin{Object: b.s.object, Field: a.field, Reason: b.t.names.portNumbers.at(p.index)}, &sendings[a.kind])
	}
	if p.nodePort != 0 {
		b.frontend(p, ir.NodePort, ir.Match{Protocol: p.Protocol, Port: p.nodePort},
			ir.Origin{Object: b.s.object, Field: b.t.names.nodePorts.at(p.index)}, &sendings[ir.NodePort])
	}
}

// sending returns the routes and endpoints for one kind of frontend.
func (b *builder) sending(kind ir.Kind, p *port, n *endpointCounts, endpoints []endpoint) kindRoutes {
	out := kindRoutes{policy: b.s.policy(kind)}
	if !b.t.caps.Has(ir.TrafficPolicies) {
		out.policy = ir.Cluster
	}
	var c endpointChoice
	if b.t.caps.Has(ir.EndpointsByKind) {
		out.policy = windowsPolicy(b.s, kind)
		c = b.t.windowsChoice(b.s, b.v, kind, endpoints)
	} else { // lists of endpoints that the policies require (SNAP-30)
		external := b.v.externallyAccessible(p)
		c = b.t.choose(n, !b.s.InternalLocal || external,
			b.s.InternalLocal || (external && b.s.policy(ir.NodePort) == ir.Local))
	}
	out.selections = [...]selection{ir.Cluster: c.cluster, ir.Local: c.local}
	key := routeKey{kind.External(), out.policy, c.cluster.n > 0, c.local.n > 0}
	if out.routes = b.t.routes[key]; key.external && key.policy == ir.Local {
		out.routes = b.credited(out.routes)
	}
	if !ir.RoutesAll(out.routes) {
		b.otherwise(&out, kind, p, n, &c, endpoints)
	}
	return out
}

// credited returns routes that a field of the Service decides, with the Service
// as the object of their origins.
func (b *builder) credited(routes []ir.Route) []ir.Route {
	routes = slices.Clone(routes)
	for i := range routes {
		if o := &routes[i].Origin; o.Object == "" {
			o.Object = b.s.object
		}
	}
	return routes
}

// otherwise sets the verdict for sources without a route, and its reason. If only
// other nodes have endpoints, packets are dropped, so that a load balancer tries
// another node (PKT-9). If no endpoint exists, they are rejected (PKT-8).
func (b *builder) otherwise(out *kindRoutes, kind ir.Kind, p *port, n *endpointCounts, c *endpointChoice, endpoints []endpoint) {
	out.otherwiseOrigin = ir.Origin{Object: b.s.object, Field: b.t.names.ports.at(p.index)}
	field := ""
	if c.usable && out.policy == ir.Local {
		field = "internalTrafficPolicy"
		if kind.External() {
			field = "externalTrafficPolicy"
		}
		out.otherwiseOrigin.Field = "spec." + field
		if b.t.caps.Has(ir.Refuses) && !b.t.caps.Has(ir.LocalFallback) {
			out.otherwise = ir.Drop
		}
	}
	out.otherwiseOrigin.Reason = b.t.emptyReason(field, n, c, endpoints)
}

// pool adds a pool with the endpoints of a selection.
func (b *builder) pool(p *port, policy ir.Policy, from selection, n *endpointCounts, endpoints []endpoint) {
	pool := ir.Pool{
		Port: p.ServicePort, Policy: policy, Affinity: b.affinity,
		Backends: make([]ir.Backend, 0, from.n),
		Origin: ir.Origin{Object: b.s.object, Field: b.t.names.ports.at(p.index),
			Reason: b.t.poolReason(from, n, endpoints)},
	}
	for i := range endpoints {
		if e := &endpoints[i]; b.t.selects(from, e) {
			pool.Backends = append(pool.Backends, ir.Backend{
				AddrPort: e.addrPort, Local: b.t.isLocal(e), Origin: b.t.origin(e, b.t.backendReason(from))})
		}
	}
	b.out.Pools = append(b.out.Pools, pool)
}

// rebase replaces the policies in Route.Pool by indexes. Routes that need no
// change, those of most Services, remain shared.
func rebase(routes []ir.Route, index [ir.Local + 1]int) []ir.Route {
	same := func(r ir.Route) bool { return index[r.Pool] == r.Pool }
	if !slices.ContainsFunc(routes, func(r ir.Route) bool { return !same(r) }) {
		return routes
	}
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].Pool = index[routes[i].Pool]
	}
	return routes
}

func (b *builder) frontend(p *port, kind ir.Kind, match ir.Match, origin ir.Origin, s *kindRoutes) {
	f := ir.Frontend{
		Kind: kind, Match: match, Port: p.ServicePort, Policy: s.policy, Routes: s.routes,
		Fallback: s.otherwise, FallbackOrigin: s.otherwiseOrigin, Origin: origin,
	}
	if kind == ir.LoadBalancer {
		f.SourceRanges = b.ranges
	}
	if b.s.tables != nil && kind.External() && s.policy == ir.Cluster && len(s.routes) > 0 {
		f.Maglev = &b.s.tables.Maglev
	}
	b.out.Frontends = append(b.out.Frontends, f)
}

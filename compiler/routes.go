package compiler

import "github.com/proxyc/proxyc/ir"

// routeKey is everything except the node that the routes of a frontend depend on.
type routeKey struct {
	external       bool // governed by externalTrafficPolicy
	policy         ir.Policy
	cluster, local bool // which lists of endpoints are not empty
}

// routeTable builds the routes for every key, once for all Services. In these
// routes Route.Pool is the pool's policy; builder.rebase replaces it by an index.
// Where a field of the Service decides (Local is never the default), the origins
// have no object; builder.credited adds it.
func (t *nodeTarget) routeTable() map[routeKey][]ir.Route {
	table := map[routeKey][]ir.Route{}
	bools := [...]bool{false, true}
	for _, policy := range [...]ir.Policy{ir.Cluster, ir.Local} {
		for _, cluster := range bools {
			for _, local := range bools {
				table[routeKey{false, policy, cluster, local}] = t.internalRoutes(policy, cluster, local)
				table[routeKey{true, policy, cluster, local}] = t.externalRoutes(policy, cluster, local)
			}
		}
	}
	return table
}

// single routes all sources to the endpoints of a policy. Mode ipvs falls back
// from Local to Cluster if no endpoint is local (IPV-4). Without endpoints there
// is no route.
func (t *nodeTarget) single(policy ir.Policy, cluster, local, snat bool, origin ir.Origin) []ir.Route {
	if policy == ir.Local && !local && t.caps.Has(ir.LocalFallback) {
		policy = ir.Cluster
		origin.Reason = "no endpoint " + t.onNode + ": all endpoints of the cluster are used"
	}
	if (policy == ir.Cluster && !cluster) || (policy == ir.Local && !local) {
		return nil
	}
	return []ir.Route{{From: ir.Any, Pool: int(policy), SNAT: snat, Origin: origin}}
}

// modeOrigin returns the origin of routes that the mode decides.
func (t *nodeTarget) modeOrigin(reason string) ir.Origin {
	return ir.Origin{Object: "config", Field: "mode", Reason: string(t.mode) + ": " + reason}
}

// internalRoutes returns the routes of ClusterIP frontends: from pods and the
// node (PKT-1), and from other clients (PKT-2).
func (t *nodeTarget) internalRoutes(policy ir.Policy, cluster, local bool) []ir.Route {
	detector := &t.node.Detector
	switch {
	case !t.caps.Has(ir.KeepsClient):
		return t.single(policy, cluster, local, true, t.modeOrigin("the node is the source of connections"))
	case !t.caps.Has(ir.Masquerades):
		return t.single(policy, cluster, local, false, t.modeOrigin("the client address is kept"))
	case t.node.MasqueradeAll:
		return t.single(policy, cluster, local, true, ir.Origin{Object: "config", Field: t.masqueradeAll, Reason: "all clients are masqueraded"})
	case detector.Mode == ir.DetectNone:
		origin := detector.Origin
		origin.Reason += ": the client address is kept"
		return t.single(policy, cluster, local, false, origin)
	}
	origin := detector.Origin
	origin.Reason = "not from a pod: masqueraded"
	others := t.single(policy, cluster, local, true, origin)
	if others == nil {
		return nil
	}
	origin.Reason = "from a pod: the client address is kept"
	return []ir.Route{{From: ir.Pods, Pool: others[0].Pool, Origin: origin}, others[0]}
}

// externalRoutes returns the routes of external frontends. PKT-3 to PKT-6 define
// the endpoints and masquerading for each policy and source.
func (t *nodeTarget) externalRoutes(policy ir.Policy, cluster, local bool) []ir.Route {
	switch {
	case !t.caps.Has(ir.KeepsClient):
		return t.single(policy, cluster, local, true, t.modeOrigin("the node is the source of connections"))
	case !t.caps.Has(ir.Masquerades):
		return t.single(policy, cluster, local, false, t.modeOrigin("the client address is kept"))
	case policy == ir.Cluster:
		return t.single(policy, cluster, local, true, ir.Origin{Object: "default", Field: "externalTrafficPolicy",
			Reason: "externalTrafficPolicy Cluster: masqueraded, so that replies return through this node"})
	}
	origin := ir.Origin{Field: "spec.externalTrafficPolicy", Reason: "externalTrafficPolicy Local: the client address is kept"}
	outside := t.single(policy, cluster, local, false, origin)
	if t.caps.Has(ir.LocalFallback) || !cluster {
		return outside
	}
	var routes []ir.Route
	if d := &t.node.Detector; d.Mode != ir.DetectNone {
		pods := d.Origin
		pods.Reason = "from a pod: all endpoints are used, as for the ClusterIP"
		routes = append(routes, ir.Route{From: ir.Pods, Pool: int(ir.Cluster), Origin: pods})
	}
	origin.Reason = "externalTrafficPolicy Local, from the node itself: all endpoints are used, masqueraded"
	routes = append(routes, ir.Route{From: ir.ThisNode, Pool: int(ir.Cluster), SNAT: true, Origin: origin})
	return append(routes, outside...)
}

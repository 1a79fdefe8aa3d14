package compiler

import (
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// criterion selects endpoints of a service port.
type criterion uint8

const (
	nothing     criterion = iota
	ready                 // ready
	forNode               // ready, and node hints name this node (SNAP-44)
	forZone               // ready, and zone hints name this node's zone
	terminating           // serving and terminating, used if none is ready
	serving               // serving, terminating or not; behind a terminating load balancer in kernelspace (WIN-22)
	every                 // all, serving or not; if none serves in kernelspace (WIN-22)
	lasting               // ready and not terminating; decides between the others in kernelspace (WIN-22)
)

// selection is the endpoints that match a criterion, in the cluster or only on
// this node.
type selection struct {
	criterion
	local bool
	n     int // number of endpoints
}

// endpointChoice is the endpoints of a service port that a node uses. Each list
// falls back to terminating endpoints independently of the other.
type endpointChoice struct {
	cluster, local selection
	usable         bool // some endpoint of the cluster could serve
}

// endpointCounts counts the endpoints of a service port, in the cluster and on
// this node.
type endpointCounts struct {
	total, ready, terminating, serving int
	localReady, localTerminating       int
	nodeHinted, forNode                int // of the ready ones
	zoneHinted, forZone                int
	over                               bool // they exceed the limit and are ignored
}

// isLocal reports whether an endpoint is on this node: by nodeName, or because
// HNS reports it as local, whatever its nodeName (WIN-31).
func (t *nodeTarget) isLocal(e *endpoint) bool {
	if t.node.Name != "" && e.NodeName == t.node.Name {
		return true
	}
	_, here := t.hosted[e.addrPort.Addr()]
	return here
}

func (t *nodeTarget) selects(s selection, e *endpoint) bool {
	if s.local && !t.isLocal(e) {
		return false
	}
	switch s.criterion {
	case ready:
		return e.Ready && (e.Serving || !t.caps.Has(ir.EndpointsByKind))
	case forNode:
		return e.Ready && slices.Contains(e.NodeHints(), t.node.Name)
	case forZone:
		return e.Ready && slices.Contains(e.ZoneHints(), t.node.Zone)
	case terminating:
		return e.Serving && e.Terminating
	case serving:
		return e.Serving
	case lasting:
		return e.Ready && !e.Terminating
	}
	return s.criterion == every
}

func (t *nodeTarget) countEndpoints(endpoints []endpoint) endpointCounts {
	n := endpointCounts{total: len(endpoints)}
	for i := range endpoints {
		e := &endpoints[i]
		local := t.isLocal(e)
		if e.Serving {
			n.serving++
		}
		switch {
		case e.Ready:
			n.ready++
			count(&n.localReady, local)
			if len(e.NodeHints()) > 0 {
				n.nodeHinted++
				count(&n.forNode, slices.Contains(e.NodeHints(), t.node.Name))
			}
			if len(e.ZoneHints()) > 0 {
				n.zoneHinted++
				count(&n.forZone, slices.Contains(e.ZoneHints(), t.node.Zone))
			}
		case e.Serving && e.Terminating:
			n.terminating++
			count(&n.localTerminating, local)
		}
	}
	return n
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}

// selection returns the selection for a criterion, with its count.
func (t *nodeTarget) selection(c criterion, local bool, endpoints []endpoint) selection {
	s := selection{criterion: c, local: local}
	for i := range endpoints {
		count(&s.n, t.selects(s, &endpoints[i]))
	}
	return s
}

// choose returns the endpoints of a service port that this node uses. TOP-1 to
// TOP-8 define readiness, hints, termination and policies. useCluster and
// useLocal select the lists to build, as the policies require (SNAP-30).
func (t *nodeTarget) choose(n *endpointCounts, useCluster, useLocal bool) endpointChoice {
	if !t.caps.Has(ir.Topology) { // ready endpoints, without hints or fallback
		return endpointChoice{cluster: selection{ready, false, n.ready}, usable: n.ready > 0}
	}
	c := endpointChoice{usable: n.ready+n.terminating > 0}
	if useCluster {
		c.cluster = t.clusterSelection(n)
	}
	if useLocal {
		c.local = selection{ready, true, n.localReady}
		if n.localReady == 0 {
			c.local = selection{terminating, true, n.localTerminating}
		}
	}
	return c
}

// clusterSelection returns the endpoints for policy Cluster. Hints apply only if
// every ready endpoint has them and at least one matches this node.
func (t *nodeTarget) clusterSelection(n *endpointCounts) selection {
	switch {
	case n.ready == 0:
		return selection{terminating, false, n.terminating}
	case n.nodeHinted == n.ready && n.forNode > 0 && t.node.Name != "":
		return selection{forNode, false, n.forNode}
	case n.zoneHinted == n.ready && n.forZone > 0 && t.node.Zone != "":
		return selection{forZone, false, n.forZone}
	}
	return selection{ready, false, n.ready}
}

// poolReason returns how the endpoints of a pool were chosen.
func (t *nodeTarget) poolReason(s selection, n *endpointCounts, endpoints []endpoint) string {
	switch s.criterion {
	case forNode:
		return "node hints for " + t.node.Name + ": " + ofReady(s.n, n.ready)
	case forZone:
		return "zone hints for " + t.node.Zone + ": " + ofReady(s.n, n.ready)
	case terminating:
		where := ""
		if s.local {
			where = " " + t.onNode
		}
		return "no endpoint is ready" + where + ": " + counted(s.n, "endpoint") + " serving and terminating"
	case serving:
		return "every endpoint is terminating: " + counted(s.n, "endpoint") + " still serving"
	case every:
		return "no endpoint is serving: " + allOf(s.n, "endpoint")
	}
	if s.local {
		return ofReady(s.n, n.ready) + " " + t.onNode
	}
	reason := allOf(s.n, "ready endpoint")
	if n.nodeHinted+n.zoneHinted > 0 {
		reason += t.ignoredHints(n, endpoints)
	}
	return reason
}

// allOf returns "the only thing" or "all 5 things".
func allOf(n int, thing string) string {
	if n == 1 {
		return "the only " + thing
	}
	return "all " + counted(n, thing)
}

func ofReady(k, n int) string { return strconv.Itoa(k) + " of " + counted(n, "ready endpoint") }

// ignoredHints returns why existing hints are ignored.
func (t *nodeTarget) ignoredHints(n *endpointCounts, endpoints []endpoint) string {
	kind, hinted := "zone hints", n.zoneHinted
	hints := func(e *endpoint) []string { return e.ZoneHints() }
	if n.zoneHinted == 0 {
		kind, hinted = "node hints", n.nodeHinted
		hints = func(e *endpoint) []string { return e.NodeHints() }
	}
	switch {
	case !t.caps.Has(ir.Topology):
		return "; " + kind + " ignored: mode " + string(t.mode) + " has none"
	case hinted < n.ready:
		for i := range endpoints {
			if e := &endpoints[i]; e.Ready && len(hints(e)) == 0 {
				return "; " + kind + " ignored: " + e.addrPort.String() + " has none"
			}
		}
	case n.zoneHinted == 0:
		return "; node hints ignored: none is for " + t.node.Name
	case t.node.Zone == "":
		return "; zone hints ignored: the node has no zone"
	}
	return "; zone hints ignored: none is for " + t.node.Zone
}

// backendReason returns why an endpoint is used.
func (t *nodeTarget) backendReason(s selection) string {
	switch s.criterion {
	case terminating:
		return "serving and terminating: no endpoint is ready"
	case serving:
		return "serving: every endpoint is terminating"
	case every:
		return "no endpoint is serving"
	case forNode:
		return "ready, hinted for this node"
	case forZone:
		return "ready, hinted for this zone"
	}
	return "ready"
}

// emptyReason returns why a list of endpoints is empty.
func (t *nodeTarget) emptyReason(field string, n *endpointCounts, c *endpointChoice, endpoints []endpoint) string {
	switch {
	case n.over:
		return "the endpoints are ignored: the Service has too many backends"
	case n.total == 0:
		return "no endpoints"
	case !c.usable:
		e := &endpoints[0]
		reason := "no ready endpoint: " + e.addrPort.String() + " is not ready"
		if n.total > 1 {
			reason += ", nor " + counted(n.total-1, "other")
		}
		return reason
	}
	if field == "" { // kernelspace
		return "every endpoint is terminating or not serving: only the ClusterIP and load balancer addresses are kept"
	}
	return field + " Local: no ready endpoint " + t.onNode
}

package hns

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// key identifies a load balancer in HNS: an address, or the node's own addresses in one family,
// with protocol and port.
type key struct {
	family ir.Family
	match  ir.Match
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.family, o.family), k.match.Compare(o.match))
}

// object returns the name of the load balancer in operations.
func (k key) object() string {
	if k.match.IsNodePort() && k.family == ir.IPv6 {
		return "load balancer " + k.match.String() + " (IPv6)"
	}
	return "load balancer " + k.match.String()
}

func endpointObject(a netip.Addr) string { return "endpoint " + a.String() }

// claim is a load balancer that a Service requires. Several Services may require the same health
// check load balancer of an address.
type claim struct {
	service ir.Name
	rules.LoadBalancer
}

// need is a required endpoint with the number of its uses.
type need struct {
	rules.Endpoint
	uses, local int
	service     ir.Name // one of its users
}

// role returns the role of the endpoint: a pod of this node if any use requires it.
func (n *need) role() rules.Role {
	if n.local > 0 {
		return rules.LocalPod
	}
	return n.Role
}

// desired is the desired state of the host.
type desired struct {
	node      ir.PerFamily[*rules.Node] // nil if the family is not managed
	hns       ir.HNS
	nodeIP    ir.PerFamily[netip.Addr]
	endpoints map[netip.Addr]*need
	balancers map[key][]*claim // sorted by Service name; the first is used
}

// claim returns the load balancer that is used for a key; nil for none.
func (w *desired) claim(k key) *claim {
	if claims := w.balancers[k]; len(claims) > 0 {
		return claims[0]
	}
	return nil
}

// newDesired returns the desired state of a network for Programs.
func newDesired(programs ir.Programs, network *Network, can Features) *desired {
	w := &desired{endpoints: map[netip.Addr]*need{}, balancers: map[key][]*claim{}}
	for f, p := range ir.Present(programs) {
		if f == ir.IPv6 && (network.Overlay() || !can.DualStack) && programs.IPv4 != nil {
			continue // dual-stack requires HNS support and a network that is no overlay (WIN-6)
		}
		node := p.Node
		h := ir.HNS{}
		if node.HNS != nil {
			h = *node.HNS
		}
		if h.NetworkType = network.Type; network.Overlay() {
			h.NetworkType = rules.Overlay
		}
		node.HNS = &h
		w.hns = h
		*w.nodeIP.At(f) = node.IP
		n := rules.LowerNode(f, &node)
		*w.node.At(f) = n
		for _, e := range n.Endpoints() {
			w.use(e, ir.Name{}, 1)
		}
		for i := range p.Services {
			w.count(f, &p.Services[i], 1)
		}
	}
	return w
}

// count adds n to the uses of everything that a Service requires, which it returns. n is 1 to add the
// Service, and -1 to remove it.
func (w *desired) count(f ir.Family, s *ir.Service, n int) (fragment rules.Fragment) {
	node := w.node.Of(f)
	if node == nil || s == nil {
		return fragment
	}
	fragment = node.LowerService(s)
	for _, e := range fragment.Endpoints {
		w.use(e, s.Name, n)
	}
	for _, l := range fragment.LoadBalancers {
		k := key{f, l.Match}
		claims := slices.DeleteFunc(slices.Clone(w.balancers[k]), func(c *claim) bool { return c.service == s.Name })
		if n > 0 {
			claims = append(claims, &claim{s.Name, l})
			slices.SortStableFunc(claims, func(a, b *claim) int { return a.service.Compare(b.service) })
		}
		if w.balancers[k] = claims; len(claims) == 0 {
			delete(w.balancers, k)
		}
	}
	return fragment
}

func (w *desired) use(e rules.Endpoint, service ir.Name, n int) {
	have := w.endpoints[e.Address]
	if have == nil {
		have = &need{Endpoint: e, service: service}
		w.endpoints[e.Address] = have
	}
	have.uses += n
	if e.Role == rules.LocalPod {
		have.local += n
	} else if n > 0 && have.Role == rules.LocalPod {
		have.Endpoint = e // used when no remaining use is local
	}
	if have.uses <= 0 {
		delete(w.endpoints, e.Address)
	}
}

// missing returns the pods of this node without an endpoint, among some addresses and those that the
// load balancers of some keys require.
func (w *desired) missing(s *state, keys sets.Set[key], addrs sets.Set[netip.Addr]) []netip.Addr {
	all := addrs.Clone()
	for k := range keys {
		if c := w.claim(k); c != nil {
			for _, ref := range c.HCN.HostComputeEndpoints {
				if a, err := netip.ParseAddr(ref); err == nil {
					all.Insert(a)
				}
			}
		}
	}
	return slices.DeleteFunc(all.UnsortedList(), func(a netip.Addr) bool { return !w.podMissing(s, a) })
}

// podMissing reports whether an address is of a required pod of this node without an endpoint.
func (w *desired) podMissing(s *state, a netip.Addr) bool {
	n, e := w.endpoints[a], s.byAddr[a]
	return n != nil && n.role() == rules.LocalPod && (e == nil || s.stale(w, a, e))
}

// addUsers adds the keys of all load balancers that use some endpoints.
func (w *desired) addUsers(keys sets.Set[key], refs sets.Set[string]) {
	for k, claims := range w.balancers {
		if refs.HasAny(claims[0].HCN.HostComputeEndpoints...) {
			keys.Insert(k)
		}
	}
}

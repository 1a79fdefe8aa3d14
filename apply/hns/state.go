package hns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// state is the part of the host's state that concerns the proxy.
type state struct {
	network   Network
	can       Features
	hostMACs  map[netip.Addr]string // of the host's interfaces, by IP address
	byID      map[string]*Endpoint
	byAddr    map[netip.Addr]*Endpoint // local ones take precedence over remote ones
	rootName  string
	root      string                // id of the endpoint of that name; "" if it does not exist
	balancers map[key]*LoadBalancer // of proxyc or kube-proxy
	foreign   map[key]string        // ids of other programs' load balancers
	objects   map[string]bool       // ids of all load balancers and remote endpoints when it was read
	// obsoleteBalancers and obsoleteEndpoints are duplicates made by a proxy. They are to be removed.
	obsoleteBalancers []*LoadBalancer
	obsoleteEndpoints []*Endpoint
}

// newState sorts listed objects. endpoints are those of the network; g contains the others.
func newState(network Network, can Features, hostMACs map[netip.Addr]string, root string, endpoints []Endpoint, balancers []LoadBalancer, g *Summary) *state {
	s := &state{network: network, can: can, hostMACs: hostMACs, byID: map[string]*Endpoint{}, byAddr: map[netip.Addr]*Endpoint{},
		rootName: root, balancers: map[key]*LoadBalancer{}, foreign: map[key]string{}}
	for i := range endpoints {
		s.add(&endpoints[i])
	}
	elsewhere := map[string]bool{}
	for _, e := range g.Endpoints {
		switch {
		case e.Network == network.ID:
		case !e.Remote && e.Name == root && root != "" && s.root == "":
			s.root = e.ID // the host's endpoint may be in another network
		default:
			elsewhere[e.ID] = true
		}
	}
	for i := range balancers {
		l := &balancers[i]
		k, single := keyOf(l)
		switch {
		case !single || !s.ours(l, elsewhere):
			if single {
				s.foreign[k] = l.ID
			}
		case s.balancers[k] != nil:
			s.obsoleteBalancers = append(s.obsoleteBalancers, l)
		default:
			s.balancers[k] = l
		}
	}
	return s
}

// add adds an endpoint of the network. Windows may have a local and a remote one with the same
// address. The local one counts, and the other is spare.
func (s *state) add(e *Endpoint) {
	s.byID[e.ID] = e
	if !e.Remote && e.Name != "" && e.Name == s.rootName {
		s.root = e.ID
	}
	for _, a := range e.Addrs {
		switch have := s.byAddr[a]; {
		case have == nil:
			s.byAddr[a] = e
		case have.Remote && !e.Remote:
			s.byAddr[a] = e
			s.addObsolete(have)
		default:
			s.addObsolete(e)
		}
	}
}

// addObsolete records an endpoint of a proxy that is to be removed.
func (s *state) addObsolete(e *Endpoint) {
	if s.createdByProxy(e) && !slices.ContainsFunc(s.obsoleteEndpoints, func(x *Endpoint) bool { return x.ID == e.ID }) {
		s.obsoleteEndpoints = append(s.obsoleteEndpoints, e)
	}
}

// isNewPod reports whether an endpoint is of a pod of this node that is not in the state.
func (s *state) isNewPod(e *Endpoint) bool {
	return e.Network == s.network.ID && !e.Remote && s.byID[e.ID] == nil
}

// remove removes an endpoint.
func (s *state) remove(e *Endpoint) {
	delete(s.byID, e.ID)
	for _, a := range e.Addrs {
		if s.byAddr[a] == e {
			delete(s.byAddr, a)
		}
	}
}

// keyOf returns the key of a load balancer. single reports whether it has the form that proxies
// create: one port of at most one address.
func keyOf(l *LoadBalancer) (k key, single bool) {
	if len(l.PortMappings) != 1 || len(l.FrontendVIPs) > 1 {
		return k, false
	}
	m := l.PortMappings[0]
	k.match = ir.Match{Protocol: ir.Protocol(m.Protocol), Port: m.ExternalPort}
	if k.family = ir.IPv4; l.Flags&rules.IPv6LB != 0 {
		k.family = ir.IPv6
	}
	if len(l.FrontendVIPs) == 1 {
		a, err := netip.ParseAddr(l.FrontendVIPs[0])
		if err != nil {
			return k, false
		}
		k.match.Addr, k.family = a, ir.FamilyOf(a)
	}
	return k, true
}

// ours reports whether a proxy created a load balancer, this one or an earlier one. HNS does not
// store the creator, but other programs create none in the cluster's network.
func (s *state) ours(l *LoadBalancer, elsewhere map[string]bool) bool {
	return len(l.HostComputeEndpoints) > 0 && !slices.ContainsFunc(l.HostComputeEndpoints, func(id string) bool { return elsewhere[strings.ToLower(id)] })
}

// createdByProxy reports whether a proxy created an endpoint: it is remote, and its MAC address is
// the one that proxies derive from the IP address, or the host's.
func (s *state) createdByProxy(e *Endpoint) bool {
	if !e.Remote || len(e.Addrs) != 1 {
		return false
	}
	if sameMAC(e.MAC, rules.MAC(e.Addrs[0])) {
		return true
	}
	for _, mac := range s.hostMACs {
		if sameMAC(e.MAC, mac) {
			return true
		}
	}
	return false
}

// sameMAC compares MAC addresses in any notation.
func sameMAC(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, ":", "-"), strings.ReplaceAll(b, ":", "-"))
}

// endpoint returns the endpoint to create for a need. It has a provider address, and the MAC
// address of the host if it represents the host.
func (s *state) endpoint(w *desired, n *need) *rules.HostComputeEndpoint {
	e := n.HCN
	if n.Role == rules.ServiceIP || n.Role == rules.NodeSource {
		e.MacAddress = s.hostMACs[w.nodeIP.Of(ir.FamilyOf(n.Address))]
	}
	if p := s.provider(w, n); p.IsValid() {
		e.Policies = []rules.EndpointPolicy{{Type: "ProviderAddress", Settings: rules.ProviderAddress{ProviderAddress: p.String()}}}
	}
	return &e
}

// provider returns the provider address of an endpoint; invalid if it has none.
func (s *state) provider(w *desired, n *need) netip.Addr {
	if !s.network.Overlay() || n.HCN.Flags&rules.RemoteEndpoint == 0 {
		return netip.Addr{}
	}
	if n.Role == rules.RemotePod {
		if p := s.network.ProviderOf(n.Address); p.IsValid() {
			return p
		}
	}
	return w.nodeIP.Of(ir.FamilyOf(n.Address))
}

// fits reports whether an existing endpoint satisfies a need.
func (s *state) fits(w *desired, n *need, e *Endpoint) bool {
	if !e.Remote || !s.createdByProxy(e) {
		return true // an endpoint of a local pod or another program is used unchanged
	}
	p := s.provider(w, n)
	return e.Provider == p && sameMAC(e.MAC, s.endpoint(w, n).MacAddress)
}

// stale reports whether a proxy created an endpoint for an address that a pod of this node now has.
func (s *state) stale(w *desired, a netip.Addr, e *Endpoint) bool {
	n := w.endpoints[a]
	return n != nil && n.role() == rules.LocalPod && s.createdByProxy(e)
}

// balancer returns the load balancer to create, with the ids of its endpoints. Endpoints that do
// not exist are omitted. It returns nil if none exists, or if there is no claim.
func (s *state) balancer(w *desired, k key, c *claim) *rules.HostComputeLoadBalancer {
	if c == nil {
		return nil
	}
	l := c.HCN
	l.HostComputeEndpoints = nil
	source := netip.Addr{}
	for _, ref := range c.HCN.HostComputeEndpoints {
		id, outside := s.root, false
		if c.Kind != rules.HealthCheck {
			id, outside = s.pod(w, ref)
		}
		if outside { // traffic to a node, or outside all remote subnets, uses the node IP as source (WIN-20)
			source = w.nodeIP.Of(k.family)
		}
		if id != "" && !slices.Contains(l.HostComputeEndpoints, id) {
			l.HostComputeEndpoints = append(l.HostComputeEndpoints, id)
		}
	}
	if len(l.HostComputeEndpoints) == 0 {
		return nil
	}
	if source.IsValid() {
		l.SourceVIP = source.String()
	}
	l.PortMappings = slices.Clone(l.PortMappings)
	if !s.can.SessionAffinity {
		l.PortMappings[0].DistributionType = rules.PerConnection
	}
	if !s.can.DSR {
		l.Flags &^= rules.DSR
		l.PortMappings[0].Flags &^= rules.UseMux | rules.PreserveDIP
	}
	return &l
}

// pod returns the id of the endpoint of an address, "" for none, and whether it is a node or outside all
// remote subnets of an overlay.
func (s *state) pod(w *desired, addr string) (id string, outside bool) {
	a, _ := netip.ParseAddr(addr)
	e := s.byAddr[a]
	if e == nil || s.stale(w, a, e) {
		return "", false
	}
	p := s.network.ProviderOf(a)
	return e.ID, e.Remote && s.network.Overlay() && (!p.IsValid() || p == a)
}

// same reports whether an existing load balancer equals the desired one.
func same(have *LoadBalancer, want *rules.HostComputeLoadBalancer) bool {
	return have.SourceVIP == want.SourceVIP && have.Flags == want.Flags && slices.Equal(have.PortMappings, want.PortMappings) &&
		slices.Equal(have.FrontendVIPs, want.FrontendVIPs) && slices.Equal(slices.Sorted(slices.Values(lowered(have.HostComputeEndpoints))), slices.Sorted(slices.Values(lowered(want.HostComputeEndpoints))))
}

// lowered returns ids in lower case.
func lowered(ids []string) []string {
	ids = slices.Clone(ids)
	for i := range ids {
		ids[i] = strings.ToLower(ids[i])
	}
	return ids
}

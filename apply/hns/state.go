package hns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// state is what the host has, as far as it is of the proxy's concern.
type state struct {
	network   Network
	can       Features
	hostMACs  map[netip.Addr]string // of the host's interfaces, by their addresses
	byID      map[string]*Endpoint
	byAddr    map[netip.Addr]*Endpoint // local ones before remote ones
	rootName  string
	root      string                // id of the endpoint of that name; empty: there is none
	balancers map[key]*LoadBalancer // the proxy's
	foreign   map[key]string        // ids of others'
	// spare are the proxy's load balancers and endpoints that have no place in the
	// maps: to go.
	spareBalancers []*LoadBalancer
	spareEndpoints []*Endpoint
}

// newState sorts what was listed. Endpoints are those of the network; of the
// others only the glance tells.
func newState(network Network, can Features, hostMACs map[netip.Addr]string, root string, endpoints []Endpoint, balancers []LoadBalancer, g *Glance) *state {
	s := &state{network: network, can: can, hostMACs: hostMACs, byID: map[string]*Endpoint{}, byAddr: map[netip.Addr]*Endpoint{},
		rootName: root, balancers: map[key]*LoadBalancer{}, foreign: map[key]string{}}
	for i := range endpoints {
		s.enter(&endpoints[i])
	}
	elsewhere := map[string]bool{}
	for _, e := range g.Endpoints {
		switch {
		case e.Network == network.ID:
		case !e.Remote && e.Name == root && root != "" && s.root == "":
			s.root = e.ID // the host's may be in another network
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
			s.spareBalancers = append(s.spareBalancers, l)
		default:
			s.balancers[k] = l
		}
	}
	return s
}

// enter notes an endpoint of the network. Windows may have a local and a remote
// one with the same address: the local one counts, and the other is to go.
func (s *state) enter(e *Endpoint) {
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
			s.spare(have)
		default:
			s.spare(e)
		}
	}
}

func (s *state) spare(e *Endpoint) {
	if s.made(e) {
		s.spareEndpoints = append(s.spareEndpoints, e)
	}
}

// leave forgets an endpoint.
func (s *state) leave(e *Endpoint) {
	delete(s.byID, e.ID)
	for _, a := range e.Addrs {
		if s.byAddr[a] == e {
			delete(s.byAddr, a)
		}
	}
}

// keyOf returns the key of a load balancer, and whether it is one as the proxy
// makes them: for one port of at most one address.
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

// ours reports whether a load balancer is the proxy's, this one's or the one's
// before it: HNS does not know who made it, but nobody else makes any in the
// cluster's network.
func (s *state) ours(l *LoadBalancer, elsewhere map[string]bool) bool {
	return len(l.HostComputeEndpoints) > 0 && !slices.ContainsFunc(l.HostComputeEndpoints, func(id string) bool { return elsewhere[strings.ToLower(id)] })
}

// made reports whether a proxy made an endpoint: a remote one with the MAC
// address that proxies give by the address, or the host's.
func (s *state) made(e *Endpoint) bool {
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

// sameMAC compares MAC addresses, whichever of their forms they have.
func sameMAC(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, ":", "-"), strings.ReplaceAll(b, ":", "-"))
}

// endpoint returns the endpoint to make for a need: with its provider address,
// and the MAC address of the host where it stands for the host.
func (s *state) endpoint(w *wanted, n *need) *rules.HostComputeEndpoint {
	e := n.HCN
	if n.Role == rules.ServiceIP || n.Role == rules.NodeSource {
		e.MacAddress = s.hostMACs[w.nodeIP.Of(ir.FamilyOf(n.Address))]
	}
	if p := s.provider(w, n); p.IsValid() {
		e.Policies = []rules.EndpointPolicy{{Type: "ProviderAddress", Settings: rules.ProviderAddress{ProviderAddress: p.String()}}}
	}
	return &e
}

// provider is the provider address that an endpoint is to have; not valid: none.
func (s *state) provider(w *wanted, n *need) netip.Addr {
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

// fits reports whether an endpoint that is there can be what is needed.
func (s *state) fits(w *wanted, n *need, e *Endpoint) bool {
	if !e.Remote || !s.made(e) {
		return true // a pod of this node, or somebody else's: it is as it is
	}
	p := s.provider(w, n)
	return e.Provider == p && sameMAC(e.MAC, s.endpoint(w, n).MacAddress)
}

// stale reports whether an endpoint is what a proxy made for an address that a
// pod of this node has by now.
func (s *state) stale(w *wanted, a netip.Addr, e *Endpoint) bool {
	n := w.endpoints[a]
	return n != nil && n.role() == rules.LocalPod && s.made(e)
}

// balancer returns a load balancer as the host is to have it, with the ids of its
// endpoints. Endpoints that are not there are left out: nil if none is.
func (s *state) balancer(w *wanted, k key, c *claim) *rules.HostComputeLoadBalancer {
	l := c.HCN
	l.HostComputeEndpoints = nil
	source := netip.Addr{}
	for _, ref := range c.HCN.HostComputeEndpoints {
		id, a := s.root, netip.Addr{}
		if c.Kind != rules.HealthCheck {
			id = ""
			a, _ = netip.ParseAddr(ref)
			if e := s.byAddr[a]; e != nil && !s.stale(w, a, e) {
				id = e.ID
				if e.Remote && s.network.Overlay() {
					if p := s.network.ProviderOf(a); !p.IsValid() || p == a {
						source = w.nodeIP.Of(k.family) // WIN-20
					}
				}
			}
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

// same reports whether a load balancer of the host is as it is to be.
func same(have *LoadBalancer, want *rules.HostComputeLoadBalancer) bool {
	ids := func(list []string) []string {
		list = slices.Clone(list)
		for i := range list {
			list[i] = strings.ToLower(list[i])
		}
		slices.Sort(list)
		return list
	}
	return have.SourceVIP == want.SourceVIP && have.Flags == want.Flags && slices.Equal(have.PortMappings, want.PortMappings) &&
		slices.Equal(have.FrontendVIPs, want.FrontendVIPs) && slices.Equal(ids(have.HostComputeEndpoints), ids(want.HostComputeEndpoints))
}

package hns

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Overlay is the network type that reaches pods of other nodes by encapsulation,
// so that every address requires an endpoint.
const Overlay = "Overlay"

// Lower lowers a Program to the Ruleset of its family.
func Lower(p *ir.Program) *Ruleset {
	n := LowerNode(p.Family, &p.Node)
	r := &Ruleset{Family: p.Family, Network: n.hns.NetworkName, NetworkType: n.hns.NetworkType}
	r.Endpoints = n.Endpoints()
	for i := range p.Services {
		f := n.LowerService(&p.Services[i])
		r.Endpoints = append(r.Endpoints, f.Endpoints...)
		r.LoadBalancers = append(r.LoadBalancers, f.LoadBalancers...)
	}
	r.Endpoints = canonical(r.Endpoints)
	slices.SortStableFunc(r.LoadBalancers, func(a, b LoadBalancer) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Match.Compare(b.Match))
	})
	return r
}

// canonical sorts endpoints and keeps one for each address, preferably a local
// one, which already exists.
func canonical(endpoints []Endpoint) []Endpoint {
	order := make([]*Endpoint, len(endpoints)) // pointers sort faster than the large values
	for i := range endpoints {
		order[i] = &endpoints[i]
	}
	slices.SortStableFunc(order, func(a, b *Endpoint) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Role, b.Role)) // "local" before "remote"
	})
	order = slices.CompactFunc(order, func(a, b *Endpoint) bool { return a.Address == b.Address })
	sorted := make([]Endpoint, len(order))
	for i, e := range order {
		sorted[i] = *e
	}
	return sorted
}

// Node is the part that all Services of one family share.
type Node struct {
	family ir.Family
	node   *ir.Node
	hns    *ir.HNS
}

// LowerNode prepares the lowering of a node's Services.
func LowerNode(f ir.Family, n *ir.Node) *Node {
	x := &Node{family: f, node: n, hns: n.HNS}
	if x.hns == nil {
		x.hns = &ir.HNS{}
	}
	return x
}

func (n *Node) overlay() bool { return n.hns.NetworkType == Overlay }

// Endpoints returns the node's endpoints that belong to no Service.
func (n *Node) Endpoints() []Endpoint {
	vip := n.hns.SourceVIP
	if !n.overlay() || !vip.IsValid() {
		return nil
	}
	e := newEndpoint(vip, NodeSource)
	e.Origin = ir.Origin{Object: "config", Field: "winkernel.sourceVip"}
	return []Endpoint{e}
}

func newEndpoint(a netip.Addr, role Role) Endpoint {
	return Endpoint{Ref: ref(a), Address: a, Role: role, HCN: HostComputeEndpoint{
		IpConfigurations: []IpConfig{{IpAddress: a.String()}},
		SchemaVersion:    schemaVersion2,
	}}
}

// provider sets the node as the provider address of an endpoint (see the package
// comment).
func (n *Node) provider(e *Endpoint) {
	if n.overlay() && n.node.IP.IsValid() {
		e.HCN.Policies = []EndpointPolicy{{Type: "ProviderAddress", Settings: ProviderAddress{n.node.IP.String()}}}
	}
}

// LowerService returns the Fragment of one Service. Frontends without backends
// have no load balancer, so packets to them are neither rejected nor dropped
// (WIN-23).
func (n *Node) LowerService(s *ir.Service) Fragment {
	var x Fragment
	for i := range s.Pools {
		x.backends(n, &s.Pools[i])
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if len(f.Routes) == 0 {
			continue
		}
		if f.Kind == ir.ClusterIP && n.overlay() {
			x.serviceIP(n, f)
		}
		x.LoadBalancers = append(x.LoadBalancers, n.loadBalancer(s, f))
		if port := n.healthPort(s); f.Kind == ir.LoadBalancer && port != 0 {
			x.health(n, s, f, port)
		}
	}
	return x
}

// backends adds the endpoints of a pool. Those of this node already exist.
func (x *Fragment) backends(n *Node, p *ir.Pool) {
	for _, b := range p.Backends {
		role := RemotePod
		if b.Local {
			role = LocalPod
		}
		e := newEndpoint(b.AddrPort.Addr(), role)
		e.Port, e.Origin = p.Port, b.Origin
		if !b.Local {
			e.HCN.Flags = RemoteEndpoint
			e.HCN.MacAddress = MAC(e.Address)
			n.provider(&e)
		}
		x.Endpoints = append(x.Endpoints, e)
	}
}

func (x *Fragment) serviceIP(n *Node, f *ir.Frontend) {
	e := newEndpoint(f.Match.Addr, ServiceIP)
	e.Port, e.Origin = f.Port, f.Origin
	e.HCN.Flags = RemoteEndpoint
	n.provider(&e)
	x.Endpoints = append(x.Endpoints, e)
}

var kinds = [...]Kind{ir.ClusterIP: ClusterIP, ir.ExternalIP: ExternalIP, ir.LoadBalancer: Ingress, ir.NodePort: NodePort}

// loadBalancer returns the load balancer of a frontend. All its routes use one
// pool in this mode.
func (n *Node) loadBalancer(s *ir.Service, f *ir.Frontend) LoadBalancer {
	pool := &s.Pools[f.Routes[len(f.Routes)-1].Pool]
	kind := kinds[f.Kind]
	portFlags, flags := n.flags(kind, settings(s))
	mapping := LoadBalancerPortMapping{
		Protocol:     uint32(f.Match.Protocol),
		ExternalPort: f.Match.Port,
		Flags:        portFlags,
	}
	if pool.Affinity != nil {
		mapping.DistributionType = SourceIP // HNS determines the timeout
	}
	var refs []string
	for _, b := range pool.Backends {
		refs = append(refs, ref(b.AddrPort.Addr()))
		mapping.InternalPort = b.AddrPort.Port() // the same for all endpoints (WIN-21)
	}
	lb := LoadBalancer{Kind: kind, Match: f.Match, Port: f.Port, Origin: f.Origin, NoOptimize: settings(s).NoOptimize,
		HCN: HostComputeLoadBalancer{
			HostComputeEndpoints: refs,
			PortMappings:         []LoadBalancerPortMapping{mapping},
			SchemaVersion:        schemaVersion2,
			Flags:                flags,
		}}
	if n.hns.SourceVIP.IsValid() {
		lb.HCN.SourceVIP = n.hns.SourceVIP.String()
	}
	if !f.Match.IsNodePort() {
		lb.HCN.FrontendVIPs = []string{f.Match.Addr.String()}
	}
	return lb
}

func settings(s *ir.Service) ir.HNSService {
	if s.HNS == nil {
		return ir.HNSService{}
	}
	return *s.HNS
}

// flags returns the flags of a kind in the table of load balancers.
func (n *Node) flags(kind Kind, s ir.HNSService) (port PortFlags, lb LoadBalancerFlags) {
	dsr := s.ExternalLocal
	switch kind {
	case ClusterIP:
		dsr = n.hns.EnableDSR
	case NodePort:
		port = LocalRoutedVIP | VipExternalIP
	case ExternalIP:
		port = VipExternalIP
	case Ingress:
		port = VipExternalIP
		if s.PreserveDIP {
			port |= UseMux | PreserveDIP
			dsr = true
		}
	}
	if dsr {
		lb |= DSR
	}
	if n.family == ir.IPv6 {
		lb |= IPv6LB
	}
	return port, lb
}

// healthPort returns the port of health checks at ingress addresses, or 0 if they
// are not forwarded.
func (n *Node) healthPort(s *ir.Service) uint16 {
	switch {
	case !n.hns.ForwardHealthCheckVIP || n.hns.RootEndpoint == "":
		return 0
	case s.Health != nil:
		return s.Health.Port
	}
	return n.hns.HealthzPort
}

// health adds a load balancer that forwards health checks of an ingress address
// to the node itself. The protocol is that of the service port, regardless of the
// protocol of the checks.
func (x *Fragment) health(n *Node, s *ir.Service, f *ir.Frontend, port uint16) {
	m := f.Match
	m.Port = port
	if slices.ContainsFunc(x.LoadBalancers, func(l LoadBalancer) bool { return l.Kind == HealthCheck && l.Match == m }) {
		return // added for another port of the Service
	}
	mapping := LoadBalancerPortMapping{Protocol: uint32(m.Protocol), InternalPort: port, ExternalPort: port}
	if settings(s).PreserveDIP {
		mapping.Flags = UseMux | PreserveDIP
	}
	origin := ir.Origin{Object: "config", Field: "winkernel.forwardHealthCheckVip"}
	if s.Health != nil {
		origin = s.Health.Origin
	}
	x.LoadBalancers = append(x.LoadBalancers, LoadBalancer{Kind: HealthCheck, Match: m, Port: f.Port, Origin: origin,
		NoOptimize: settings(s).NoOptimize,
		HCN: HostComputeLoadBalancer{
			HostComputeEndpoints: []string{n.hns.RootEndpoint},
			FrontendVIPs:         []string{m.Addr.String()},
			PortMappings:         []LoadBalancerPortMapping{mapping},
			SchemaVersion:        schemaVersion2,
		}})
}

package ir

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Protocol is a transport protocol by its IANA number.
type Protocol uint8

const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the lower-case name, as used by nft, iptables and ipvsadm.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// ParseProtocol parses TCP, UDP or SCTP in any case.
func ParseProtocol(s string) (Protocol, bool) {
	for _, p := range [...]Protocol{TCP, UDP, SCTP} {
		if strings.EqualFold(s, p.String()) {
			return p, true
		}
	}
	return 0, false
}

// Name is the namespace and name of an object.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// ServicePort identifies an entry of a Service's spec.ports. Endpoints are
// selected, and session affinity is kept, for each ServicePort.
type ServicePort struct {
	Service  Name     `json:"service"`
	Port     string   `json:"port,omitzero"` // spec.ports[].name; may be empty in a Service with one port
	Protocol Protocol `json:"protocol"`
}

// String returns ns/name:port, or ns/name if the port has no name. kube-proxy
// uses this form in logs, comments and the hashes of chain names (IPT-2).
func (p ServicePort) String() string {
	if p.Port == "" {
		return p.Service.String()
	}
	return p.Service.String() + ":" + p.Port
}

// Compare orders by Service, port name, protocol.
func (p ServicePort) Compare(o ServicePort) int {
	return cmp.Or(p.Service.Compare(o.Service), cmp.Compare(p.Port, o.Port), cmp.Compare(p.Protocol, o.Protocol))
}

// Origin explains why a part of a Program exists: the object and field that
// request it, and the reason.
type Origin struct {
	Object string `json:"object"`          // "Service ns/web", "EndpointSlice ns/web-abc12", "Node node1", "config", "default"
	Field  string `json:"field,omitzero"`  // "spec.ports[0].nodePort", "endpoints[3]", "iptables.masqueradeBit"
	Reason string `json:"reason,omitzero"` // "ready, on this node", "externalTrafficPolicy Local: no endpoint on this node"
}

// String returns "Object: Field (Reason)" without empty parts.
func (o Origin) String() string {
	s := o.Object
	if o.Field != "" {
		s += ": " + o.Field
	}
	if o.Reason != "" {
		s += " (" + o.Reason + ")"
	}
	return s
}

// Program is everything that one node does for one IP family.
type Program struct {
	Family   Family    `json:"family"`
	Node     Node      `json:"node"`
	Services []Service `json:"services,omitzero"` // by Name
}

// Find returns the index of a Service, or that at which it can be inserted, and whether it exists.
func (p *Program) Find(name Name) (int, bool) {
	return slices.BinarySearchFunc(p.Services, name, func(s Service, n Name) int { return s.Name.Compare(n) })
}

// HealthCheck returns the Service with a health check node port, or nil.
func (p *Program) HealthCheck(port uint16) *Service {
	for i := range p.Services {
		if h := p.Services[i].Health; h != nil && h.Port == port {
			return &p.Services[i]
		}
	}
	return nil
}

// Frontends yields the frontends of all Services.
func (p *Program) Frontends() iter.Seq2[*Service, *Frontend] {
	return func(yield func(*Service, *Frontend) bool) {
		for i := range p.Services {
			s := &p.Services[i]
			for j := range s.Frontends {
				if !yield(s, &s.Frontends[j]) {
					return
				}
			}
		}
	}
}

// Service is the unit of incremental work: one Kubernetes Service with all its
// ports, in one family. It is compiled and lowered independently of other
// Services.
type Service struct {
	Name      Name         `json:"name"`
	Frontends []Frontend   `json:"frontends,omitzero"` // canonical order, see Frontend.Compare
	Pools     []Pool       `json:"pools,omitzero"`     // by Port, then Policy; Route.Pool is an index
	Draining  []Draining   `json:"draining,omitzero"`  // by Port; UDP only
	Health    *HealthCheck `json:"health,omitzero"`    // nil unless type LoadBalancer with externalTrafficPolicy Local
	HNS       *HNSService  `json:"hns,omitzero"`       // mode kernelspace only
	Origin    Origin       `json:"origin"`
}

// Kind is the kind of a frontend. The order is the precedence for a packet that
// matches several: node ports are last (PKT-18).
type Kind uint8

const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// String returns the API's name of the kind.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}[k]
}

// Rank returns the precedence of a claim to an address and port; 0 is the
// strongest. The cluster allocates ClusterIPs and its cloud allocates load
// balancer addresses, but any author of a Service chooses externalIPs.
func (k Kind) Rank() int {
	return [...]int{ClusterIP: 0, LoadBalancer: 1, ExternalIP: 2, NodePort: 3}[k]
}

// External reports whether externalTrafficPolicy applies to the frontend.
func (k Kind) External() bool { return k != ClusterIP }

// Policy is a traffic policy: spec.internalTrafficPolicy of ClusterIP frontends,
// spec.externalTrafficPolicy of others.
type Policy uint8

const (
	Cluster Policy = iota
	Local
)

// String returns the API's name of the policy.
func (p Policy) String() string { return [...]string{"Cluster", "Local"}[p] }

// Match is the destination that a frontend matches: Protocol and Addr:Port. A
// zero Addr matches Port on those of the node's own addresses that Node.NodePorts
// admits. Match is comparable and identifies the frontend: no two frontends of a
// Program have the same Match.
type Match struct {
	Addr     netip.Addr `json:"addr,omitzero"`
	Protocol Protocol   `json:"protocol"`
	Port     uint16     `json:"port"`
}

// IsNodePort reports whether this is the match of a node port.
func (m Match) IsNodePort() bool { return !m.Addr.IsValid() }

// String returns 10.96.0.10:80/tcp, [fd00::1]:80/tcp, or node:30080/tcp.
func (m Match) String() string {
	if m.IsNodePort() {
		return "node:" + utoa(m.Port) + "/" + m.Protocol.String()
	}
	return netip.AddrPortFrom(m.Addr, m.Port).String() + "/" + m.Protocol.String()
}

// Compare orders by address, port and protocol, node ports last.
func (m Match) Compare(o Match) int {
	return cmp.Or(Int(m.IsNodePort())-Int(o.IsNodePort()), m.Addr.Compare(o.Addr), cmp.Compare(m.Port, o.Port), cmp.Compare(m.Protocol, o.Protocol))
}

// Verdict is the result for a packet without a route.
type Verdict uint8

const (
	Reject Verdict = iota // ICMP port unreachable (PKT-8)
	Drop                  // discard silently, so that clients retry (PKT-9), or outside the source ranges (PKT-10)
)

// String returns reject or drop.
func (v Verdict) String() string { return [...]string{"reject", "drop"}[v] }

// Frontend is a port, at one address or at the node's addresses, to which clients
// connect.
type Frontend struct {
	Kind   Kind        `json:"kind"`
	Match  Match       `json:"match"`
	Port   ServicePort `json:"port"`
	Policy Policy      `json:"policy"` // the effective traffic policy

	// SourceRanges are the admitted clients; empty admits all. Only LoadBalancer
	// frontends have source ranges (spec.loadBalancerSourceRanges, PKT-10). If a
	// range contains the node's address, the Service's own VIPs are admitted too,
	// each as a separate entry (PKT-11). Other clients are dropped.
	SourceRanges []SourceRange `json:"sourceRanges,omitzero"`

	Routes []Route `json:"routes,omitzero"` // the first route that matches the packet's source applies
	// Maglev, if set, selects the backend by the client's address and port, in
	// modes with StableBackends; nil selects at random. All sources then have one
	// route, to a pool without affinity.
	Maglev *Maglev `json:"maglev,omitzero"`
	// Fallback is the verdict for new connections without a route, usually because no
	// backend exists.
	Fallback       Verdict `json:"fallback"`
	FallbackOrigin Origin  `json:"fallbackOrigin,omitzero"` // reason for missing routes; set unless RoutesAll
	Origin         Origin  `json:"origin"`
}

// Compare orders by Kind, then Match.
func (f *Frontend) Compare(o *Frontend) int {
	return cmp.Or(cmp.Compare(f.Kind, o.Kind), f.Match.Compare(o.Match))
}

// SourceRange is one admitted range of client addresses.
type SourceRange struct {
	Prefix netip.Prefix `json:"prefix,omitzero"` // masked
	Origin Origin       `json:"origin"`
}

// Scope is a set of packet sources. Scopes overlap; the first matching Route
// applies.
type Scope uint8

const (
	Any      Scope = iota // every source
	Pods                  // the cluster's pods, as detected by Node.Detector
	ThisNode              // an address of this node, used by its own processes
)

// String returns any, pods or node.
func (s Scope) String() string { return [...]string{"any", "pods", "node"}[s] }

// Route forwards packets from a scope to a pool.
type Route struct {
	From   Scope  `json:"from"`
	Pool   int    `json:"pool"`          // index into Service.Pools
	SNAT   bool   `json:"snat,omitzero"` // masquerade; hairpin connections are always masqueraded
	Origin Origin `json:"origin"`
}

// RoutesAll reports whether every source has a route. Only the last route may be
// for any source.
func RoutesAll(routes []Route) bool {
	return len(routes) > 0 && routes[len(routes)-1].From == Any
}

// Pool is the endpoints among which the connections of one service port are
// distributed evenly at random.
type Pool struct {
	Port     ServicePort `json:"port"`
	Policy   Policy      `json:"policy"`
	Backends []Backend   `json:"backends"`          // compiled: by AddrPort text, as in kube-proxy (SNAP-46); never empty
	Affinity *Affinity   `json:"affinity,omitzero"` // nil for none
	// Origin's Reason describes how the backends were selected, and why others
	// were not.
	Origin Origin `json:"origin"`
}

// Affinity is spec.sessionAffinity ClientIP. A client that returns within Timeout
// after its last new connection is forwarded to the same backend.
type Affinity struct {
	Timeout time.Duration `json:"timeout"` // whole seconds, 1 s to 24 h
	Origin  Origin        `json:"origin"`
}

// Backend is one endpoint.
type Backend struct {
	AddrPort netip.AddrPort `json:"addrPort"`
	Local    bool           `json:"local,omitzero"` // on this node (SNAP-43)
	Origin   Origin         `json:"origin"`
}

// Draining is the serving endpoints of a UDP port that no pool of the port
// contains, because of termination, traffic policy or hints. They get no new
// clients but keep their existing ones, as with TCP connections (DMN-30). They
// appear in no rule.
type Draining struct {
	Port     ServicePort `json:"port"`
	Backends []Backend   `json:"backends"` // ordered as in a Pool; never empty
	Origin   Origin      `json:"origin"`
}

// HealthCheck is spec.healthCheckNodePort: a TCP port on which the node reports
// its number of ready endpoints to load balancers (SNAP-28).
type HealthCheck struct {
	Port   uint16 `json:"port"`
	Local  int    `json:"local"` // distinct addresses of ready endpoints on this node
	Origin Origin `json:"origin"`
}

// ParseMatch parses the output of Match.String.
func ParseMatch(s string) (Match, bool) {
	addrPort, proto, ok := strings.Cut(s, "/")
	if !ok {
		return Match{}, false
	}
	p, ok := ParseProtocol(proto)
	if !ok {
		return Match{}, false
	}
	if port, isNode := strings.CutPrefix(addrPort, "node:"); isNode {
		n, err := strconv.ParseUint(port, 10, 16)
		return Match{Protocol: p, Port: uint16(n)}, err == nil
	}
	ap, err := netip.ParseAddrPort(addrPort)
	return Match{Addr: ap.Addr(), Protocol: p, Port: ap.Port()}, err == nil
}

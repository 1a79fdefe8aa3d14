package ir

import (
	"cmp"
	"net/netip"
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

// String returns the lower-case name, as nft, iptables and ipvsadm write it.
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

// ParseProtocol reads TCP, UDP or SCTP in any case.
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

// ServicePort names one entry of a Service's spec.ports: the key under which
// endpoints are chosen and session affinity is kept.
type ServicePort struct {
	Service  Name     `json:"service"`
	Port     string   `json:"port,omitzero"` // spec.ports[].name; empty is legal for a Service of one port
	Protocol Protocol `json:"protocol"`
}

// String returns ns/name:port, or ns/name where the port has no name: the form
// that kube-proxy logs, comments and hashes (IPT-2).
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

// Origin says why a piece of a Program exists: which object and field asked
// for it, and the rule by which they did.
type Origin struct {
	Object string `json:"object"`          // "Service ns/web", "EndpointSlice ns/web-abc12", "Node node1", "config", "default"
	Field  string `json:"field,omitzero"`  // "spec.ports[0].nodePort", "endpoints[3]", "iptables.masqueradeBit"
	Reason string `json:"reason,omitzero"` // "ready, on this node", "externalTrafficPolicy Local: no endpoint on this node"
}

// String returns "Object: Field (Reason)", leaving out what is empty.
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

// Program is all that one node does for one IP family.
type Program struct {
	Family   Family    `json:"family"`
	Node     Node      `json:"node"`
	Services []Service `json:"services,omitzero"` // by Name
}

// Service is the unit of incremental work: one Kubernetes Service with all its
// ports, in one family. Compiling or lowering it reads nothing of another's.
type Service struct {
	Name      Name         `json:"name"`
	Frontends []Frontend   `json:"frontends,omitzero"` // canonical order, see Frontend.Compare
	Pools     []Pool       `json:"pools,omitzero"`     // by Port, then Policy; Routes point into it
	Draining  []Draining   `json:"kept,omitzero"`      // by Port; UDP only
	Health    *HealthCheck `json:"health,omitzero"`    // nil unless type LoadBalancer with externalTrafficPolicy Local
	HNS       *HNSService  `json:"hns,omitzero"`       // kernelspace mode only
	Origin    Origin       `json:"origin"`
}

// Kind is why a frontend exists. The order is that in which a packet that
// matches several is decided (PKT-18: node ports are looked at last).
type Kind uint8

const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// String returns the API's word for the kind.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}[k]
}

// Rank orders claims to one address and port, the strongest first: the cluster
// gives ClusterIPs, its cloud the addresses of load balancers, and externalIPs
// are whatever the author of a Service writes.
func (k Kind) Rank() int {
	return [...]int{ClusterIP: 0, LoadBalancer: 1, ExternalIP: 2, NodePort: 3}[k]
}

// External reports whether the frontend is governed by externalTrafficPolicy.
func (k Kind) External() bool { return k != ClusterIP }

// Policy is a traffic policy (spec.internalTrafficPolicy for ClusterIP
// frontends, spec.externalTrafficPolicy for the others).
type Policy uint8

const (
	Cluster Policy = iota
	Local
)

// String returns the API's word.
func (p Policy) String() string { return [...]string{"Cluster", "Local"}[p] }

// Match is what a frontend takes: packets of Protocol to Addr:Port, or, when
// Addr is the zero value, to Port on the node's own addresses as far as
// Node.NodePorts admits them. It is comparable and serves as the frontend's
// identity: no two frontends of a Program have the same Match.
type Match struct {
	Addr     netip.Addr `json:"addr,omitzero"`
	Protocol Protocol   `json:"protocol"`
	Port     uint16     `json:"port"`
}

// IsNodePort reports whether the match is a node port's.
func (m Match) IsNodePort() bool { return !m.Addr.IsValid() }

// String returns 10.96.0.10:80/tcp, [fd00::1]:80/tcp, or node:30080/tcp.
func (m Match) String() string {
	if m.IsNodePort() {
		return "node:" + utoa(m.Port) + "/" + m.Protocol.String()
	}
	return netip.AddrPortFrom(m.Addr, m.Port).String() + "/" + m.Protocol.String()
}

// Compare orders node ports last, then by address, port and protocol.
func (m Match) Compare(o Match) int {
	if m.IsNodePort() != o.IsNodePort() {
		if m.IsNodePort() {
			return 1
		}
		return -1
	}
	return cmp.Or(m.Addr.Compare(o.Addr), cmp.Compare(m.Port, o.Port), cmp.Compare(m.Protocol, o.Protocol))
}

// Verdict is the fate of a packet that no route takes.
type Verdict uint8

const (
	Reject Verdict = iota // refuse at once: ICMP port unreachable (PKT-8)
	Drop                  // discard silently (PKT-9, PKT-10)
)

// String returns reject or drop.
func (v Verdict) String() string { return [...]string{"reject", "drop"}[v] }

// Frontend is one address, or the node's addresses, with one port that clients
// connect to.
type Frontend struct {
	Kind   Kind        `json:"kind"`
	Match  Match       `json:"match"`
	Port   ServicePort `json:"port"`
	Policy Policy      `json:"policy"` // the traffic policy in force

	// SourceRanges admit clients; empty admits everybody. Only LoadBalancer
	// frontends have any (spec.loadBalancerSourceRanges, PKT-10). Where the
	// node's address is within a range, the Service's own VIPs are admitted
	// too, each as an entry of its own (PKT-11). What is not admitted is
	// dropped.
	SourceRanges []SourceRange `json:"sourceRanges,omitzero"`

	Routes []Route `json:"routes,omitzero"` // the first whose From holds the packet's source decides
	// Maglev has the client's address and port choose among the backends, in modes with
	// StableBackends; nil: chance does. All sources have one route, to a pool without affinity.
	Maglev *Maglev `json:"maglev,omitzero"`
	// Else is what becomes of new connections that no route takes, for want of
	// backends most often. In JSON it is what happens to an empty frontend, as in
	// documents of earlier versions.
	Else       Verdict `json:"empty"`
	ElseOrigin Origin  `json:"emptyOrigin,omitzero"` // why there are such connections: set unless RoutesAll
	Origin     Origin  `json:"origin"`
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

// Scope is a set of packet sources. The scopes overlap: the first Route decides.
type Scope uint8

const (
	Any      Scope = iota // every source
	Pods                  // the cluster's pods, as Node.Detector tells them
	ThisNode              // an address of this node: what its own processes send
)

// String returns any, pods or node.
func (s Scope) String() string { return [...]string{"any", "pods", "node"}[s] }

// Route sends packets of a scope to a pool.
type Route struct {
	From   Scope  `json:"from"`
	Pool   int    `json:"pool"`          // index into Service.Pools
	SNAT   bool   `json:"snat,omitzero"` // masquerade; hairpin connections are masqueraded whatever it says
	Origin Origin `json:"origin"`
}

// RoutesAll reports whether every source finds a route: whether the last one,
// before which none holds everybody, is for any source.
func RoutesAll(routes []Route) bool {
	return len(routes) > 0 && routes[len(routes)-1].From == Any
}

// Pool is the endpoints among which one service port's connections are spread
// evenly, at random.
type Pool struct {
	Port     ServicePort `json:"port"`
	Policy   Policy      `json:"policy"`
	Backends []Backend   `json:"backends"`          // compiled: by AddrPort text order, as kube-proxy has it (SNAP-46); never empty
	Affinity *Affinity   `json:"affinity,omitzero"` // nil: none
	// Origin's Reason says how the backends were chosen, and why others were not.
	Origin Origin `json:"origin"`
}

// Affinity is spec.sessionAffinity ClientIP: a client that comes back before
// Timeout has passed since its last new connection meets the same backend.
type Affinity struct {
	Timeout time.Duration `json:"timeout"` // whole seconds, 1 s to 24 h
	Origin  Origin        `json:"origin"`
}

// Backend is one endpoint.
type Backend struct {
	AddrPort netip.AddrPort `json:"addrPort"`
	Local    bool           `json:"local,omitzero"` // runs on this node (SNAP-43)
	Origin   Origin         `json:"origin"`
}

// Draining are the endpoints of a UDP port that serve, but that no pool of the
// port has: because they are terminating and others are ready, or by traffic
// policy or hints. They get no new clients, and those that they have stay, as
// TCP connections do (DMN-30). No rule is made of them. In JSON and text they are
// what the Service keeps, as in documents of earlier versions.
type Draining struct {
	Port     ServicePort `json:"port"`
	Backends []Backend   `json:"backends"` // ordered as in a Pool; never empty
	Origin   Origin      `json:"origin"`
}

// HealthCheck is spec.healthCheckNodePort: a TCP port on which the node tells
// load balancers how many ready endpoints it has (SNAP-28).
type HealthCheck struct {
	Port   uint16 `json:"port"`
	Local  int    `json:"local"` // distinct addresses of ready endpoints on this node
	Origin Origin `json:"origin"`
}

// ParseMatch reads what Match.String writes.
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
		n, ok := atou(port)
		return Match{Protocol: p, Port: n}, ok
	}
	ap, err := netip.ParseAddrPort(addrPort)
	return Match{Addr: ap.Addr(), Protocol: p, Port: ap.Port()}, err == nil
}

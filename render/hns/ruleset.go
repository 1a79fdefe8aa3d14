package hns

import (
	"crypto/sha1" // for the identity of kube-proxy's load balancers
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Ruleset is the complete state of a node for one IP family.
type Ruleset struct {
	Family        ir.Family
	Network       string         // name of the network (config winkernel.networkName)
	NetworkType   string         // "Overlay" or "L2Bridge"
	Endpoints     []Endpoint     // by Address, without duplicates
	LoadBalancers []LoadBalancer // by Kind, Match and port
}

// Fragment is the part of a Ruleset that one Service adds. Several Services may
// share an endpoint, which is removed with the last of them.
type Fragment struct {
	Endpoints     []Endpoint
	LoadBalancers []LoadBalancer
}

// Role is the purpose of an endpoint.
type Role string

const (
	// LocalPod is a pod of this node. The container network creates the endpoint.
	// If it is missing, the backend is skipped.
	LocalPod Role = "local"
	// RemotePod is a backend on another node.
	RemotePod Role = "remote"
	// ServiceIP is a ClusterIP on an overlay network, which reaches only
	// endpoints.
	ServiceIP Role = "clusterIP"
	// NodeSource is the source address of an overlay node for backends (config
	// winkernel.sourceVip). It is created if missing.
	NodeSource Role = "sourceVIP"
)

// Endpoint is an endpoint and the reason for it.
type Endpoint struct {
	Ref     string     // reference in LoadBalancer.Endpoints
	Address netip.Addr // of the endpoint
	Role    Role
	HCN     HostComputeEndpoint // the endpoint to find by address (LocalPod), or to create if missing
	Port    ir.ServicePort      // one of its service ports; zero for NodeSource
	Origin  ir.Origin
}

// Kind is the kind of a load balancer.
type Kind uint8

const (
	ClusterIP Kind = iota
	NodePort
	ExternalIP
	Ingress     // an address of status.loadBalancer.ingress
	HealthCheck // health checks at an ingress address
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "HealthCheck"}[k]
}

// LoadBalancer is a load balancer and the reason for it. Older versions of HNS
// cannot modify a load balancer; it is replaced by one with another identity.
type LoadBalancer struct {
	Kind   Kind
	Match  ir.Match // of the frontend
	HCN    HostComputeLoadBalancer
	Port   ir.ServicePort
	Origin ir.Origin
	// NoOptimize removes all load balancers of the Service before the new ones
	// are created, after a change of endpoints (WIN-26).
	NoOptimize bool
}

// Endpoints returns the Refs of the endpoints.
func (l *LoadBalancer) Endpoints() []string { return l.HCN.HostComputeEndpoints }

// Identity identifies a load balancer. An existing one with the same protocol,
// ports, VIP and endpoints is kept (WIN-25). ids are the ids of its endpoints.
func (l *LoadBalancer) Identity(ids []string) string {
	var vip string
	if len(l.HCN.FrontendVIPs) > 0 {
		vip = l.HCN.FrontendVIPs[0]
	}
	var protocol, internal, external uint32
	if len(l.HCN.PortMappings) > 0 {
		m := l.HCN.PortMappings[0]
		protocol, internal, external = m.Protocol, uint32(m.InternalPort), uint32(m.ExternalPort)
	}
	return strings.Join([]string{utoa(protocol), utoa(internal), utoa(external), vip, EndpointsHash(ids)}, "/")
}

// EndpointsHash returns the exclusive or of the SHA-1 sums of the upper-cased
// ids, in hexadecimal. It does not depend on their order.
func EndpointsHash(ids []string) string {
	var hash [sha1.Size]byte
	for _, id := range ids {
		for i, b := range sha1.Sum([]byte(strings.ToUpper(id))) {
			hash[i] ^= b
		}
	}
	return hex.EncodeToString(hash[:])
}

package hns

import (
	"crypto/sha1" // as the identity of kube-proxy's load balancers has it
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Ruleset is all that a node needs for one IP family.
type Ruleset struct {
	Family        ir.Family
	Network       string         // its name (config winkernel.networkName)
	NetworkType   string         // "Overlay" or "L2Bridge"
	Endpoints     []Endpoint     // by Address, each once
	LoadBalancers []LoadBalancer // by Kind, Match and port
}

// Fragment is what one Service adds to a Ruleset. Several Services may need
// the same endpoint; it goes when the last of them does.
type Fragment struct {
	Endpoints     []Endpoint
	LoadBalancers []LoadBalancer
}

// Role is what an endpoint is for.
type Role string

const (
	// LocalPod: a pod of this node. The container network has made it; where
	// it is missing, the backend is left out.
	LocalPod Role = "local"
	// RemotePod: a backend elsewhere.
	RemotePod Role = "remote"
	// ServiceIP: a ClusterIP on an overlay network, which only endpoints are known to.
	ServiceIP Role = "clusterIP"
	// NodeSource: the address from which an overlay node speaks to backends
	// (config winkernel.sourceVip), made if missing.
	NodeSource Role = "sourceVIP"
)

// Endpoint is an endpoint and why it is there.
type Endpoint struct {
	Ref     string     // what LoadBalancer.Endpoints calls it
	Address netip.Addr // of the endpoint
	Role    Role
	HCN     HostComputeEndpoint // what to look for (LocalPod, by address), or to make if missing
	Port    ir.ServicePort      // one that needs it; zero for NodeSource
	Origin  ir.Origin
}

// Kind is a row of the table of load balancers: what it stands for.
type Kind uint8

const (
	ClusterIP Kind = iota
	NodePort
	ExternalIP
	Ingress     // an address of status.loadBalancer.ingress
	HealthCheck // what asks an ingress address for the node's health
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "HealthCheck"}[k]
}

// LoadBalancer is a load balancer and why it is there. Older versions of HNS
// cannot change one that is made: one with another identity takes its place.
type LoadBalancer struct {
	Kind   Kind
	Match  ir.Match // of the frontend
	HCN    HostComputeLoadBalancer
	Port   ir.ServicePort
	Origin ir.Origin
	// NoOptimize: after a change of endpoints all load balancers of the
	// Service are removed before the new ones are made (WIN-26).
	NoOptimize bool
}

// Endpoints returns the Refs of the endpoints.
func (l *LoadBalancer) Endpoints() []string { return l.HCN.HostComputeEndpoints }

// Identity tells load balancers apart (WIN-25): one that the host has with the
// same protocol, ports, VIP and endpoints is used again. Once endpoints have
// ids, ids are what it is made of.
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

// EndpointsHash returns the exclusive or of the SHA-1 sums of the upper-cased ids,
// in hexadecimal, which is the same in any order.
func EndpointsHash(ids []string) string {
	var hash [sha1.Size]byte
	for _, id := range ids {
		for i, b := range sha1.Sum([]byte(strings.ToUpper(id))) {
			hash[i] ^= b
		}
	}
	return hex.EncodeToString(hash[:])
}

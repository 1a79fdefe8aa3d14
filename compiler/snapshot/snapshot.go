// Package snapshot holds what the compiler knows of a cluster: Services,
// EndpointSlices, Nodes and ServiceCIDRs in compact form, reduced to the fields
// that decide about packets. Files are decoded into one; the daemon keeps one
// up to date from watch events.
package snapshot

import (
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Service is a v1 Service. Addresses stay text where the API admits what
// netip does not parse (leading zeros), and are judged by the compiler.
type Service struct {
	Name        ir.Name
	Object      string // "Service ns/web", made once for Origins
	Created     time.Time
	ProxyName   bool   // label service.kubernetes.io/service-proxy-name is present (SNAP-1)
	Type        string // "" counts as ClusterIP
	ClusterIP   string
	ClusterIPs  []string
	IPFamilies  []string
	ExternalIPs []string
	Ports       []ServicePort
	// LoadBalancer is status.loadBalancer.ingress.
	LoadBalancer  []Ingress
	SourceRanges  []string // spec.loadBalancerSourceRanges
	AffinityIP    bool     // sessionAffinity ClientIP
	AffinitySecs  int32    // sessionAffinityConfig.clientIP.timeoutSeconds; 0: not set
	InternalLocal bool     // internalTrafficPolicy Local
	ExternalLocal bool     // externalTrafficPolicy Local
	HealthPort    int32    // healthCheckNodePort
	PreserveDIP   bool     // annotation preserve-destination: "true" (kernelspace)
	NoOptimize    bool     // annotation winProxyOptimization: DISABLED (kernelspace)
	Balance       string   // annotation proxyc.dev/balance
}

// ServicePort is an entry of spec.ports.
type ServicePort struct {
	Name     string
	Protocol string // "" counts as TCP
	Port     int32
	NodePort int32
}

// Ingress is an entry of status.loadBalancer.ingress.
type Ingress struct {
	IP     string
	IPMode string // "" counts as VIP
}

// EndpointSlice is a discovery.k8s.io/v1 (or v1beta1) EndpointSlice, or v1
// Endpoints turned into slices.
type EndpointSlice struct {
	Name          ir.Name
	Object        string  // "EndpointSlice ns/web-abc12", made once for Origins
	Service       ir.Name // by label kubernetes.io/service-name; Name.Name is empty where that is missing (SNAP-4)
	Headless      bool    // label service.kubernetes.io/headless is present (SNAP-2)
	AddressType   string
	Ports         []EndpointPort
	Endpoints     []Endpoint
	FromEndpoints bool // made from v1 Endpoints: counts only where no slice serves the Service
	// Subset and Addresses tell where in v1 Endpoints the endpoints stand:
	// endpoint i is subsets[Subset].addresses[Addresses[i]]. FromEndpoints only.
	Subset    int
	Addresses []int
	// Triggered is annotation endpoints.kubernetes.io/last-change-trigger-time (SNAP-47).
	Triggered time.Time
}

// EndpointPort is an entry of ports. HasName and HasPort tell null from zero (SNAP-41).
type EndpointPort struct {
	Name     string
	Protocol string // "" counts as TCP
	Port     int32
	HasName  bool
	HasPort  bool
}

// Endpoint is an entry of endpoints.
type Endpoint struct {
	Address     string     // addresses[0] (SNAP-42); "" where there is none
	Addr        netip.Addr // Address parsed, if it is an IP
	NodeName    string
	Pod         string // targetRef.name where that is a Pod; proxyc trace finds pods by it
	Hints       *Hints // nil: none
	Ready       bool   // nil is true (SNAP-40)
	Serving     bool   // nil is true
	Terminating bool   // nil is false
}

// Hints are an endpoint's hints, which most endpoints of a slice share.
type Hints struct{ Zones, Nodes []string }

// ZoneHints returns hints.forZones.
func (e *Endpoint) ZoneHints() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// NodeHints returns hints.forNodes.
func (e *Endpoint) NodeHints() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

// Node is a v1 Node.
type Node struct {
	Name      string
	Zone      string         // label topology.kubernetes.io/zone
	Addresses []NodeAddress  // status.addresses
	PodCIDRs  []netip.Prefix // spec.podCIDRs, or spec.podCIDR alone
	// Only reports that a daemon wrote the snapshot: it has no other Node of the cluster and
	// no selectors. Annotation proxyc.dev/only-node.
	Only bool
}

// NodeAddress is an entry of status.addresses.
type NodeAddress struct{ Type, Address string }

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

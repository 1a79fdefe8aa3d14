// Package snapshot holds the state of a cluster for the compiler: Services,
// EndpointSlices, Nodes and ServiceCIDRs in compact form, reduced to the fields
// that decide about packets. Commands decode files into a Snapshot with package
// manifest; the daemon updates one from watch events.
package snapshot

import (
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Service is a v1 Service. Addresses remain text where the API accepts forms that
// netip rejects (leading zeros). The compiler validates them.
type Service struct {
	Name        ir.Name
	Object      string // "Service ns/web", built once for Origins
	Created     time.Time
	ProxyName   bool   // label service.kubernetes.io/service-proxy-name is present: served by another proxy (SNAP-1)
	Type        string // "" means ClusterIP
	ClusterIP   string
	ClusterIPs  []string
	IPFamilies  []string
	ExternalIPs []string
	Ports       []ServicePort
	// LoadBalancer is status.loadBalancer.ingress.
	LoadBalancer  []Ingress
	SourceRanges  []string // spec.loadBalancerSourceRanges
	AffinityIP    bool     // sessionAffinity ClientIP
	AffinitySecs  int32    // sessionAffinityConfig.clientIP.timeoutSeconds; 0 if not set
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
	Protocol string // "" means TCP
	Port     int32
	NodePort int32
}

// Ingress is an entry of status.loadBalancer.ingress.
type Ingress struct {
	IP     string
	IPMode string // "" means VIP
}

// Served reports whether the proxy serves the address: its ipMode is VIP, the default (SNAP-23, KEP-1860).
func (in *Ingress) Served() bool { return in.IPMode == "" || in.IPMode == "VIP" }

// EndpointSlice is a discovery.k8s.io/v1 (or v1beta1) EndpointSlice, or one made
// from v1 Endpoints.
type EndpointSlice struct {
	Name          ir.Name
	Object        string  // "EndpointSlice ns/web-abc12", built once for Origins
	Service       ir.Name // by label kubernetes.io/service-name; Name.Name is empty without it, and the slice is unused (SNAP-4)
	Headless      bool    // label service.kubernetes.io/headless is present: ignored (SNAP-2)
	AddressType   string
	Ports         []EndpointPort
	Endpoints     []Endpoint
	FromEndpoints bool // made from v1 Endpoints: used only if the Service has no slice
	// Subset and Addresses are the place of the endpoints in v1 Endpoints:
	// endpoint i is subsets[Subset].addresses[Addresses[i]]. FromEndpoints only.
	Subset    int
	Addresses []int
	// Triggered is annotation endpoints.kubernetes.io/last-change-trigger-time,
	// used only for a metric (SNAP-47).
	Triggered time.Time
}

// EndpointPort is an entry of ports. HasName and HasPort distinguish null, which
// disables the port, from zero (SNAP-41).
type EndpointPort struct {
	Name     string
	Protocol string // "" means TCP
	Port     int32
	HasName  bool
	HasPort  bool
}

// Endpoint is an entry of endpoints.
type Endpoint struct {
	Address     string     // addresses[0], the only one that counts (SNAP-42); "" if there is none
	Addr        netip.Addr // the parsed Address, if it is valid
	NodeName    string
	Pod         string // targetRef.name of a Pod, by which proxyc trace finds pods
	Hints       *Hints // nil if none
	Ready       bool   // nil in the API means true (SNAP-40)
	Serving     bool   // nil in the API means true
	Terminating bool   // nil in the API means false
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
	PodCIDRs  []netip.Prefix // spec.podCIDRs
	// Only reports that a daemon wrote the snapshot: it contains no other Node of
	// the cluster and no selectors. Annotation proxyc.dev/only-node.
	Only bool
}

// NodeAddress is an entry of status.addresses.
type NodeAddress struct{ Type, Address string }

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

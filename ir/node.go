package ir

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Node is what the Services of a Program share: the node and its settings.
// What only one mode reads stands in that mode's own struct, nil elsewhere.
type Node struct {
	Name string `json:"name"`          // SNAP-70
	Zone string `json:"zone,omitzero"` // label topology.kubernetes.io/zone
	Mode Mode   `json:"mode"`

	IP    netip.Addr   `json:"ip,omitzero"`    // the node's primary address of the family (SNAP-71); may be invalid
	Addrs []netip.Addr `json:"addrs,omitzero"` // all known addresses of the node in the family but loopback, sorted
	// NodePorts are the addresses on which node ports answer.
	NodePorts NodePortAddrs `json:"nodePorts"`
	Detector  Detector      `json:"detector"`

	MasqueradeAll bool   `json:"masqueradeAll,omitzero"` // every packet to a ClusterIP is masqueraded
	MasqueradeBit uint8  `json:"masqueradeBit"`          // the bit of the packet mark that asks for masquerade
	DropInvalid   bool   `json:"dropInvalid,omitzero"`   // iptables: drop packets in conntrack state INVALID (unless conntrack.tcpBeLiberal)
	ServiceCIDRs  []CIDR `json:"serviceCIDRs,omitzero"`  // sorted; where known, nftables drops what is inside and not allocated (SNAP-65)

	IPVS      *IPVS      `json:"ipvs,omitzero"`
	HNS       *HNS       `json:"hns,omitzero"`
	Userspace *Userspace `json:"userspace,omitzero"`
}

// MasqueradeMark returns the bit of the packet mark that asks for masquerade, 1<<MasqueradeBit (IPT-3).
func (n *Node) MasqueradeMark() uint32 { return 1 << n.MasqueradeBit }

// HasAddr reports whether addr is the node's own: in Addrs, or a loopback address.
func (n *Node) HasAddr(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	for _, a := range n.Addrs {
		if a == addr {
			return true
		}
	}
	return false
}

// CIDR is a prefix with its origin.
type CIDR struct {
	Prefix netip.Prefix `json:"prefix,omitzero"`
	Origin Origin       `json:"origin"`
}

// NodePortAddrs says on which of the node's addresses node ports answer
// (config nodePortAddresses, SNAP-73).
type NodePortAddrs struct {
	All      bool             `json:"all,omitzero"` // every address of the node; Prefixes is empty
	Prefixes []NodePortPrefix `json:"prefixes,omitzero"`
	Loopback bool             `json:"loopback,omitzero"` // also loopback addresses, as far as All or Prefixes hold them (iptables: IPv4; userspace)
	// Proxied tells that a process serves node ports at Localhost over TCP, where
	// the rules let them pass (nftables, KEP-6032).
	Proxied bool   `json:"proxied,omitzero"`
	Origin  Origin `json:"origin"`
}

// Assigned reports whether which addresses these are depends on which the node has.
func (a *NodePortAddrs) Assigned() bool {
	return a.All || slices.ContainsFunc(a.Prefixes, func(p NodePortPrefix) bool { return p.Assigned && !p.Prefix.Addr().IsLoopback() })
}

// NodePortPrefix is one entry of nodePortAddresses.
type NodePortPrefix struct {
	Prefix   netip.Prefix `json:"prefix,omitzero"`
	Assigned bool         `json:"assigned,omitzero"` // true: the addresses in Prefix that the node has; false: Prefix itself (a node IP, "primary")
	Origin   Origin       `json:"origin"`
}

// Has reports whether a node port answers at addr, on a node for which local
// says whether addr is one of its addresses.
func (a *NodePortAddrs) Has(addr netip.Addr, local bool) bool {
	if addr.IsLoopback() && !a.Loopback {
		return false
	}
	if a.All {
		return local
	}
	for _, p := range a.Prefixes {
		if p.Prefix.Contains(addr) && (local || !p.Assigned) {
			return true
		}
	}
	return false
}

// DetectMode is how traffic of the cluster's pods is told from other traffic
// (config detectLocalMode).
type DetectMode uint8

const (
	DetectNone      DetectMode = iota // not possible in this family: no packet counts as a pod's
	DetectCIDR                        // by source address: modes ClusterCIDR and NodeCIDR
	DetectInterface                   // by input interface: mode BridgeInterface
	DetectPrefix                      // by the start of its name: mode InterfaceNamePrefix
)

// String returns none, cidr, interface or prefix.
func (m DetectMode) String() string { return [...]string{"none", "cidr", "interface", "prefix"}[m] }

// Detector decides whether a packet comes from a pod.
type Detector struct {
	Mode      DetectMode   `json:"mode"`
	Prefix    netip.Prefix `json:"prefix,omitzero"`    // DetectCIDR
	Interface string       `json:"interface,omitzero"` // DetectInterface: its name; DetectPrefix: how the name begins
	Origin    Origin       `json:"origin"`
}

// IsPod reports whether a packet from src that came in by interface in counts as
// a pod's ("local" in detectLocalMode). in is empty for what the node itself
// sends, which by its interface is never a pod's.
func (d *Detector) IsPod(src netip.Addr, in string) bool {
	switch d.Mode {
	case DetectCIDR:
		return d.Prefix.Contains(src)
	case DetectInterface:
		return in == d.Interface
	case DetectPrefix:
		return in != "" && strings.HasPrefix(in, d.Interface)
	}
	return false
}

// IPVSDevice is the dummy device that holds the addresses of Services in ipvs
// mode (IPV-1). They are not the node's own.
const IPVSDevice = "kube-ipvs0"

// IPVS is what only the ipvs mode reads (config ipvs).
type IPVS struct {
	Scheduler    string // never empty; "rr" by default; ParseScheduler reads it
	ExcludeCIDRs []netip.Prefix
	StrictARP    bool
	// Timeouts of the kernel's connection table; 0 leaves the kernel's value.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// SchedulerFlags are the kernel's flags of a scheduler (IP_VS_SVC_F_SCHED1 and 2).
type SchedulerFlags uint32

const (
	SchedulerFallback SchedulerFlags = 0x08 // take another real server where the chosen one takes no connections
	SchedulerPort     SchedulerFlags = 0x10 // hash the client's port, too
)

// ParseScheduler reads a scheduler's name with its flags, as ipvsadm names these:
// "mh,mh-port". sh and mh alone have flags. mh without any has both: without
// mh-fallback, connections that it gives to a backend that drains would fail.
// ok is false where a flag is none of the scheduler's.
func ParseScheduler(s string) (name string, flags SchedulerFlags, ok bool) {
	name, rest, some := strings.Cut(s, ",")
	if !some {
		if name == "mh" {
			flags = SchedulerFallback | SchedulerPort
		}
		return name, flags, true
	}
	if name != "sh" && name != "mh" {
		return name, 0, false
	}
	for flag := range strings.SplitSeq(rest, ",") {
		switch flag {
		case name + "-fallback":
			flags |= SchedulerFallback
		case name + "-port":
			flags |= SchedulerPort
		default:
			return name, 0, false
		}
	}
	return name, flags, true
}

// HNS is what only the kernelspace mode (Windows) reads (config winkernel).
type HNS struct {
	NetworkName           string     `json:"networkName"`
	NetworkType           string     `json:"networkType"` // "Overlay" or "L2Bridge"
	SourceVIP             netip.Addr `json:"sourceVIP"`
	EnableDSR             bool       `json:"enableDSR"`
	RootEndpoint          string     `json:"rootEndpoint"` // name of the root HNS endpoint
	ForwardHealthCheckVIP bool       `json:"forwardHealthCheckVIP"`
	HealthzPort           uint16     `json:"healthzPort"`
}

// HNSService is what kernelspace mode reads of a Service beyond its frontends.
type HNSService struct {
	ExternalLocal bool `json:"externalLocal,omitzero"` // spec.externalTrafficPolicy is Local
	PreserveDIP   bool `json:"preserveDIP,omitzero"`   // annotation preserve-destination: "true"
	NoOptimize    bool `json:"noOptimize,omitzero"`    // annotation winProxyOptimization: DISABLED
}

// Userspace is what only the userspace mode reads.
type Userspace struct {
	BindAddress    netip.Addr // where proxy ports listen
	PortMin        uint16     // portRange; both 0: the kernel picks
	PortMax        uint16
	UDPIdleTimeout time.Duration
}

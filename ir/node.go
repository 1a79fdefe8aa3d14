package ir

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Node is the node and its settings, shared by the Services of a Program.
// Settings of a single mode are in a separate struct, nil in other modes.
type Node struct {
	Name string `json:"name"`          // the node's name, trimmed and in lower case (SNAP-70)
	Zone string `json:"zone,omitzero"` // label topology.kubernetes.io/zone
	Mode Mode   `json:"mode"`

	IP    netip.Addr   `json:"ip,omitzero"`    // the node's primary address of the family (SNAP-71); may be invalid
	Addrs []netip.Addr `json:"addrs,omitzero"` // all known addresses of the node in the family except loopback, sorted
	// NodePorts are the addresses on which node ports answer.
	NodePorts NodePortAddrs `json:"nodePorts"`
	Detector  Detector      `json:"detector"`

	MasqueradeAll bool   `json:"masqueradeAll,omitzero"` // every packet to a ClusterIP is masqueraded
	MasqueradeBit uint8  `json:"masqueradeBit"`          // bit of the packet mark that requests masquerade
	DropInvalid   bool   `json:"dropInvalid,omitzero"`   // iptables: drop packets in conntrack state INVALID (unless conntrack.tcpBeLiberal)
	ServiceCIDRs  []CIDR `json:"serviceCIDRs,omitzero"`  // sorted; nftables drops packets to unused addresses in them (SNAP-65)

	IPVS      *IPVS      `json:"ipvs,omitzero"`
	HNS       *HNS       `json:"hns,omitzero"`
	Userspace *Userspace `json:"userspace,omitzero"`
}

// MasqueradeMark returns the packet mark that requests masquerade,
// 1<<MasqueradeBit (IPT-3).
func (n *Node) MasqueradeMark() uint32 { return 1 << n.MasqueradeBit }

// HasAddr reports whether addr belongs to the node: it is in Addrs or a loopback
// address.
func (n *Node) HasAddr(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(n.Addrs, addr)
}

// CIDR is a prefix with its origin.
type CIDR struct {
	Prefix netip.Prefix `json:"prefix,omitzero"`
	Origin Origin       `json:"origin"`
}

// NodePortAddrs is the set of node addresses on which node ports answer (config
// nodePortAddresses, SNAP-73).
type NodePortAddrs struct {
	All      bool             `json:"all,omitzero"` // every address of the node; Prefixes is empty
	Prefixes []NodePortPrefix `json:"prefixes,omitzero"`
	Loopback bool             `json:"loopback,omitzero"` // also loopback addresses in All or Prefixes (iptables: IPv4; userspace)
	// Proxied reports whether a process serves node ports at Localhost over TCP,
	// where the rules accept them (nftables, KEP-6032).
	Proxied bool `json:"proxied,omitzero"`
	// Rejected reports whether node ports at loopback addresses are rejected, over
	// TCP only unless Proxied (nftables, KEP-6032).
	Rejected bool   `json:"rejected,omitzero"`
	Origin   Origin `json:"origin"`
}

// RejectsLocalhost reports whether a protocol's node ports are rejected at loopback
// addresses.
func (a *NodePortAddrs) RejectsLocalhost(p Protocol) bool {
	return a.Rejected && !(a.Proxied && p == TCP)
}

// Assigned reports whether the set depends on the addresses that the node
// currently has.
func (a *NodePortAddrs) Assigned() bool {
	return a.All || slices.ContainsFunc(a.Prefixes, func(p NodePortPrefix) bool { return p.Assigned && !p.Prefix.Addr().IsLoopback() })
}

// NodePortPrefix is one entry of nodePortAddresses.
type NodePortPrefix struct {
	Prefix   netip.Prefix `json:"prefix,omitzero"`
	Assigned bool         `json:"assigned,omitzero"` // true: the addresses in Prefix that the node has; false: Prefix itself (a node IP, "primary")
	Origin   Origin       `json:"origin"`
}

// Has reports whether a node port answers at addr. local reports whether addr is
// one of the node's addresses.
func (a *NodePortAddrs) Has(addr netip.Addr, local bool) bool {
	if addr.IsLoopback() && !a.Loopback {
		return false
	}
	if a.All {
		return local
	}
	return slices.ContainsFunc(a.Prefixes, func(p NodePortPrefix) bool { return p.Prefix.Contains(addr) && (local || !p.Assigned) })
}

// DetectMode is how traffic of the cluster's pods is detected (config
// detectLocalMode).
type DetectMode uint8

const (
	DetectNone      DetectMode = iota // not possible in this family: no packet is treated as a pod
	DetectCIDR                        // by source address: modes ClusterCIDR and NodeCIDR
	DetectInterface                   // by input interface: mode BridgeInterface
	DetectPrefix                      // by prefix of its name: mode InterfaceNamePrefix
)

// String returns none, cidr, interface or prefix.
func (m DetectMode) String() string { return [...]string{"none", "cidr", "interface", "prefix"}[m] }

// Detector decides whether a packet comes from a pod.
type Detector struct {
	Mode      DetectMode   `json:"mode"`
	Prefix    netip.Prefix `json:"prefix,omitzero"`    // DetectCIDR
	Interface string       `json:"interface,omitzero"` // DetectInterface: its name; DetectPrefix: the prefix of the name
	Origin    Origin       `json:"origin"`
}

// IsInterfaceName reports whether an interface may have a name, and the tools accept it: the kernel limits
// length and characters, and + and * are wildcards of the tools.
func IsInterfaceName(name string) bool {
	return name != "" && len(name) <= 15 && name != "." && name != ".." && !strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune("/:\"'`\\+*!", r)
	})
}

// IsPod reports whether a packet from src, received on interface in, counts as a
// pod's ("local" in detectLocalMode). in is empty for packets from the node
// itself, which an interface mode never treats as a pod.
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

// IPVSDevice is the dummy device that carries the addresses of Services in mode
// ipvs (IPV-1). These are not the node's own addresses.
const IPVSDevice = "kube-ipvs0"

// IPVS is the settings of mode ipvs (config ipvs).
type IPVS struct {
	Scheduler    string         `json:"scheduler"` // never empty; "rr" by default; parsed by ParseScheduler
	ExcludeCIDRs []netip.Prefix `json:"excludeCIDRs,omitzero"`
	StrictARP    bool           `json:"strictARP,omitzero"`
	// Timeouts of the kernel's connection table; 0 keeps the kernel's value.
	TCPTimeout    time.Duration `json:"tcpTimeout,omitzero"`
	TCPFinTimeout time.Duration `json:"tcpFinTimeout,omitzero"`
	UDPTimeout    time.Duration `json:"udpTimeout,omitzero"`
}

// SchedulerFlags are the kernel's flags of a scheduler (IP_VS_SVC_F_SCHED1 and
// 2).
type SchedulerFlags uint32

const (
	SchedulerFallback SchedulerFlags = 0x08 // use another real server if the selected one accepts no connections
	SchedulerPort     SchedulerFlags = 0x10 // include the client's port in the hash
)

// ParseScheduler parses the name of a scheduler with its flags, in the form of
// ipvsadm: "mh,mh-port". Only sh and mh have flags. The default of mh is both
// flags: without mh-fallback, connections that it assigns to a draining backend
// would fail. ok is false if the scheduler does not have one of the flags.
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

// HNS is the settings of mode kernelspace on Windows (config winkernel).
type HNS struct {
	NetworkName           string     `json:"networkName"`
	NetworkType           string     `json:"networkType"` // "Overlay" or "L2Bridge"
	SourceVIP             netip.Addr `json:"sourceVIP"`
	EnableDSR             bool       `json:"enableDSR"`
	RootEndpoint          string     `json:"rootEndpoint"` // name of the root HNS endpoint
	ForwardHealthCheckVIP bool       `json:"forwardHealthCheckVIP"`
	HealthzPort           uint16     `json:"healthzPort"`
}

// HNSService is the fields of a Service that mode kernelspace uses in addition to
// its frontends.
type HNSService struct {
	ExternalLocal bool `json:"externalLocal,omitzero"` // spec.externalTrafficPolicy is Local
	PreserveDIP   bool `json:"preserveDIP,omitzero"`   // annotation preserve-destination: "true"
	NoOptimize    bool `json:"noOptimize,omitzero"`    // annotation winProxyOptimization: DISABLED
}

// Userspace is the settings of mode userspace.
type Userspace struct {
	BindAddress    netip.Addr    `json:"bindAddress,omitzero"` // address of proxy ports
	PortMin        uint16        `json:"portMin,omitzero"`     // portRange; if both are 0, the kernel selects ports
	PortMax        uint16        `json:"portMax,omitzero"`
	UDPIdleTimeout time.Duration `json:"udpIdleTimeout,omitzero"`
}

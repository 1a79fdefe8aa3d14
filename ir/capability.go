package ir

import "strings"

// Mode is a proxy mode (config field mode).
type Mode string

const (
	ModeIPTables    Mode = "iptables"
	ModeIPVS        Mode = "ipvs"
	ModeNFTables    Mode = "nftables"
	ModeKernelspace Mode = "kernelspace"
	ModeUserspace   Mode = "userspace"
)

// Modes returns all modes in display order.
func Modes() []Mode {
	return []Mode{ModeIPTables, ModeIPVS, ModeNFTables, ModeKernelspace, ModeUserspace}
}

// ModeNames returns the names of all modes in display order.
func ModeNames() (names []string) {
	for _, m := range Modes() {
		names = append(names, string(m))
	}
	return names
}

// Capability is a difference by design between the modes of kube-proxy: a
// feature, or a rule for handling packets. Mode.Capabilities lists those of each
// mode. The compiler, ir/sim and the tests that compare back ends read that list.
type Capability uint64

const (
	// LocalhostNodePorts: node ports answer at 127.0.0.1, if the configuration
	// enables it (PKT-16).
	LocalhostNodePorts Capability = 1 << iota
	// RejectUndefinedPorts: a ClusterIP rejects ports that its Service does not
	// define (PKT-13).
	RejectUndefinedPorts
	// DropUnallocated: packets to unused addresses of a ServiceCIDR are dropped
	// (PKT-14).
	DropUnallocated
	// HairpinRemote: hairpin connections are masqueraded for endpoints of other
	// nodes too (PKT-7).
	HairpinRemote
	// GuardEmpty: source ranges also protect VIPs of Services without endpoints
	// (NFT-5).
	GuardEmpty
	// EmptyFromNode: external addresses without endpoints also reject connections
	// from the node itself.
	EmptyFromNode
	// EmptyNodePortAnyAddr: node ports without endpoints reject on every local
	// address, regardless of nodePortAddresses (PKT-15).
	EmptyNodePortAnyAddr
	// LocalFallback: policy Local without a local endpoint uses all endpoints
	// (IPV-4).
	LocalFallback
	// Refuses: packets without an endpoint are rejected or dropped. Without this
	// capability they pass.
	Refuses
	// SourceRanges: loadBalancerSourceRanges are enforced.
	SourceRanges
	// TrafficPolicies: policy Local is supported.
	TrafficPolicies
	// KeepsClient: backends can receive the client's address. Without this
	// capability every connection comes from the node.
	KeepsClient
	// ServesSCTP: SCTP is proxied.
	ServesSCTP
	// Topology: hints and terminating endpoints take part in the choice of
	// endpoints (TOP-2 to TOP-6).
	Topology
	// HealthPorts: healthCheckNodePort is served.
	HealthPorts
	// RejectUndefinedVIPPorts: RejectUndefinedPorts also applies to external
	// addresses. In mode ipvs the node itself carries them.
	RejectUndefinedVIPPorts
	// GuardEmptyFromNode: GuardEmpty also applies to packets from the node
	// itself.
	GuardEmptyFromNode
	// MasqueradesOwnVIP: without detection of pods, packets from the node to a
	// ClusterIP are masqueraded if the ClusterIP is also their source. The node
	// chooses that source if it carries the address.
	MasqueradesOwnVIP
	// CarriesVIPs: the node carries the addresses of Services, so that its
	// packets to them have them as source. Source ranges then admit these packets
	// if they admit the node's address.
	CarriesVIPs
	// NodePortBehindEmpty: at an address of both the node and a Service without
	// endpoints, the node port of the same number answers (PKT-18).
	NodePortBehindEmpty
	// NodePortRefusesFirst: if both the Service and the node port lack endpoints,
	// the verdict of the node port applies to packets from elsewhere.
	NodePortRefusesFirst
	// Masquerades: pods are detected (detectLocalMode), and clients are
	// masqueraded if replies would bypass the node. Without this capability,
	// KeepsClient applies to every client.
	Masquerades
	// AffinityTimeout: session affinity ends after the Service's timeout.
	AffinityTimeout
	// OneBackendPort: all endpoints of a service port have the same port
	// (WIN-21).
	OneBackendPort
	// EndpointsByKind: the endpoints, which must be ready and serving, are chosen
	// separately for each kind of frontend (WIN-22).
	EndpointsByKind
	// DropsInvalid: packets in conntrack state INVALID are dropped, unless
	// conntrack.tcpBeLiberal is set.
	DropsInvalid
	// ListsNodePortAddresses: nodePortAddresses is supported (SNAP-73). Without
	// this capability, every address of the node serves node ports.
	ListsNodePortAddresses
	// ConfusesShared: connections that keep the client's address and port are not
	// distinguished between two Services that share an endpoint (IPV-16).
	ConfusesShared
	// ProxiesLocalhost: a process can serve node ports at localhost over TCP,
	// where the rules do not (KEP-6032). They reject the others there.
	ProxiesLocalhost
	// LocalhostByProcess: LocalhostNodePorts also applies to ::1, and does not
	// depend on iptables.localhostNodePorts, because the rules redirect to a
	// process on the node.
	LocalhostByProcess
	// StableBackends: a Service can choose the backend by the client's address
	// and port (Maglev) instead of at random.
	StableBackends
	// FiltersTranslated: the rejecting rules also match translated packets, with
	// the backend as their destination. That backend may be an address of a
	// Service (PKT-20).
	FiltersTranslated
	// GuardsTranslated: FiltersTranslated includes source ranges, which admit no
	// translated packet.
	GuardsTranslated
	// ForwardsMarked: FiltersTranslated excludes forwarded packets that are
	// marked for masquerade.
	ForwardsMarked
	// HairpinByAddress: hairpin connections are detected by addresses of local
	// backends. An address that is local for one Service is local for all, even
	// where an EndpointSlice names no node (PKT-7).
	HairpinByAddress
	// HairpinByPort: HairpinByAddress compares the backend's port too.
	HairpinByPort
)

var capabilityNames = [...]string{
	"LocalhostNodePorts", "RejectUndefinedPorts", "DropUnallocated", "HairpinRemote", "GuardEmpty",
	"EmptyFromNode", "EmptyNodePortAnyAddr", "LocalFallback", "Refuses", "SourceRanges",
	"TrafficPolicies", "KeepsClient", "ServesSCTP", "Topology", "HealthPorts",
	"RejectUndefinedVIPPorts", "GuardEmptyFromNode",
	"MasqueradesOwnVIP", "CarriesVIPs", "NodePortBehindEmpty", "NodePortRefusesFirst",
	"Masquerades", "AffinityTimeout", "OneBackendPort", "EndpointsByKind", "DropsInvalid", "ListsNodePortAddresses", "ConfusesShared",
	"ProxiesLocalhost", "LocalhostByProcess", "StableBackends",
	"FiltersTranslated", "GuardsTranslated", "ForwardsMarked", "HairpinByAddress", "HairpinByPort",
}

// Has reports whether c contains all capabilities of o.
func (c Capability) Has(o Capability) bool { return c&o == o }

// String returns the names, joined by "|".
func (c Capability) String() string {
	var names []string
	for i, n := range capabilityNames {
		if c&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, "|")
}

const common = Refuses | SourceRanges | TrafficPolicies | KeepsClient | ServesSCTP | Topology | HealthPorts | Masquerades | AffinityTimeout |
	ListsNodePortAddresses

// ByProcess reports whether the rules redirect all connections to a process on the
// node, which forwards them.
func (m Mode) ByProcess() bool { return m.Capabilities().Has(LocalhostByProcess) }

// SharesBackends reports whether frontends share the backends of a pool. In other
// modes the kernel has an entry for each backend of each frontend.
func (m Mode) SharesBackends() bool {
	return m == ModeIPTables || m == ModeNFTables || m == ModeUserspace
}

// Capabilities returns the capabilities of a mode, or 0 for an unknown mode.
func (m Mode) Capabilities() Capability {
	switch m {
	case ModeIPTables:
		return common | LocalhostNodePorts | HairpinRemote | EmptyNodePortAnyAddr | NodePortBehindEmpty | DropsInvalid | FiltersTranslated | GuardsTranslated | ForwardsMarked
	case ModeNFTables:
		return common | RejectUndefinedPorts | DropUnallocated | GuardEmpty | GuardEmptyFromNode | EmptyFromNode | NodePortBehindEmpty | NodePortRefusesFirst | ProxiesLocalhost | StableBackends | HairpinByAddress
	case ModeIPVS:
		return common | RejectUndefinedPorts | RejectUndefinedVIPPorts | GuardEmpty | MasqueradesOwnVIP | CarriesVIPs | LocalFallback | EmptyFromNode | ConfusesShared | HairpinByAddress | HairpinByPort
	case ModeKernelspace:
		return TrafficPolicies | KeepsClient | ServesSCTP | HealthPorts | NodePortBehindEmpty | OneBackendPort | EndpointsByKind
	case ModeUserspace:
		return Refuses | EmptyFromNode | AffinityTimeout | ListsNodePortAddresses | LocalhostNodePorts | LocalhostByProcess
	}
	return 0
}

package ir

import "strings"

// Mode is a proxy mode (config mode).
type Mode string

const (
	ModeIPTables    Mode = "iptables"
	ModeIPVS        Mode = "ipvs"
	ModeNFTables    Mode = "nftables"
	ModeKernelspace Mode = "kernelspace"
	ModeUserspace   Mode = "userspace"
)

// Modes returns all modes, in the order in which they are listed to people.
func Modes() []Mode {
	return []Mode{ModeIPTables, ModeIPVS, ModeNFTables, ModeKernelspace, ModeUserspace}
}

// Capability is one thing in which the modes of kube-proxy differ by design:
// a packet's fate depends on it, or a mode lacks it. What a mode has is stated
// once, in Mode.Capabilities, and read by the compiler, by ir/sim and by the
// tests that compare back ends.
type Capability uint64

const (
	// LocalhostNodePorts: node ports answer at 127.0.0.1, if the configuration wants it (PKT-16).
	LocalhostNodePorts Capability = 1 << iota
	// RejectUndefinedPorts: a ClusterIP refuses ports that its Service does not have (PKT-13).
	RejectUndefinedPorts
	// DropUnallocated: addresses inside a ServiceCIDR that no Service has are dropped (PKT-14).
	DropUnallocated
	// HairpinRemote: hairpin connections are masqueraded for endpoints of other nodes too (PKT-7).
	HairpinRemote
	// GuardEmpty: source ranges also guard VIPs of Services without endpoints (NFT-5).
	GuardEmpty
	// EmptyFromNode: external addresses without endpoints also refuse what the node itself sends.
	EmptyFromNode
	// EmptyNodePortAnyAddr: node ports without endpoints refuse on every local address,
	// whatever nodePortAddresses says (PKT-15).
	EmptyNodePortAnyAddr
	// LocalFallback: a Local policy without a local endpoint uses the cluster's (IPV-4).
	LocalFallback
	// Refuses: what finds no endpoint is refused or dropped; without it, it passes.
	Refuses
	// SourceRanges: loadBalancerSourceRanges are enforced.
	SourceRanges
	// TrafficPolicies: the Local traffic policies are honoured.
	TrafficPolicies
	// KeepsClient: backends can see the client's address; without it every connection comes from the node.
	KeepsClient
	// ServesSCTP: SCTP is proxied.
	ServesSCTP
	// Topology: hints and the terminating fallback choose endpoints (TOP-2 to TOP-6).
	Topology
	// HealthPorts: healthCheckNodePort is served.
	HealthPorts
	// RejectUndefinedVIPPorts: what RejectUndefinedPorts says of ClusterIPs holds for
	// external addresses too (ipvs, where the node itself has them all).
	RejectUndefinedVIPPorts
	// GuardEmptyFromNode: GuardEmpty holds for what the node itself sends as well.
	GuardEmptyFromNode
	// MasqueradesOwnVIP: what the node sends to a ClusterIP with that very address as its
	// source, as it does where it has the address, is masqueraded where nothing tells pods
	// from others.
	MasqueradesOwnVIP
	// CarriesVIPs: the node has the addresses of Services itself, so that what it sends to them
	// has them as its source; source ranges then admit it if they admit the node's address.
	CarriesVIPs
	// NodePortBehindEmpty: at an address of the node that is also a Service's, without
	// endpoints, the node port of the same number answers (PKT-18).
	NodePortBehindEmpty
	// NodePortRefusesFirst: where neither of these two finds an endpoint, what comes from
	// elsewhere meets what the node port has for that, not what the Service has.
	NodePortRefusesFirst
	// Masquerades: clients are told apart (detectLocalMode) and masqueraded where replies would
	// not come back; without it, KeepsClient holds for every client.
	Masquerades
	// AffinityTimeout: session affinity ends after the Service's timeout.
	AffinityTimeout
	// OneBackendPort: all endpoints of a service port have the same port (WIN-21).
	OneBackendPort
	// EndpointsByKind: each kind of frontend has endpoints of its own choice, of those that are
	// ready and serve (WIN-22).
	EndpointsByKind
	// DropsInvalid: what connection tracking takes for no part of a connection is dropped, if the
	// configuration does not want it otherwise (conntrack.tcpBeLiberal).
	DropsInvalid
	// ListsNodePortAddresses: nodePortAddresses is looked at (SNAP-73); without it, every address
	// of the node serves node ports.
	ListsNodePortAddresses
	// ConfusesShared: connections from one port of a client, whose address is kept, to two
	// Services that share an endpoint are not told apart (IPV-16).
	ConfusesShared
	// ProxiesLocalhost: a process can serve node ports at localhost over TCP, where the
	// rules do not (KEP-6032); UDP and SCTP are refused there, as nobody listens.
	ProxiesLocalhost
	// LocalhostByProcess: LocalhostNodePorts holds at ::1 too, and does not depend on
	// iptables.localhostNodePorts: rules lead to a process on the node.
	LocalhostByProcess
	// StableBackends: a Service can have the client's address and port choose its backend in
	// place of chance (Maglev).
	StableBackends
	// FiltersTranslated: what refuses packets looks at those that were translated, too, by
	// the backend as their destination, which may be an address of a Service (PKT-20).
	FiltersTranslated
	// GuardsTranslated: that includes source ranges, which admit none of them.
	GuardsTranslated
	// ForwardsMarked: that does not include what is forwarded and marked for masquerade.
	ForwardsMarked
	// HairpinByAddress: whose connections to itself are masqueraded is known by address and port,
	// so that a backend which one Service has on this node is, for all Services, also where an
	// EndpointSlice names no node (PKT-7).
	HairpinByAddress
)

var capabilityNames = [...]string{
	"LocalhostNodePorts", "RejectUndefinedPorts", "DropUnallocated", "HairpinRemote", "GuardEmpty",
	"EmptyFromNode", "EmptyNodePortAnyAddr", "LocalFallback", "Refuses", "SourceRanges",
	"TrafficPolicies", "KeepsClient", "ServesSCTP", "Topology", "HealthPorts",
	"RejectUndefinedVIPPorts", "GuardEmptyFromNode",
	"MasqueradesOwnVIP", "CarriesVIPs", "NodePortBehindEmpty", "NodePortRefusesFirst",
	"Masquerades", "AffinityTimeout", "OneBackendPort", "EndpointsByKind", "DropsInvalid", "ListsNodePortAddresses", "ConfusesShared",
	"ProxiesLocalhost", "LocalhostByProcess", "StableBackends",
	"FiltersTranslated", "GuardsTranslated", "ForwardsMarked", "HairpinByAddress",
}

// Has reports whether all capabilities of o are in c.
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

// ByProcess reports whether rules lead all connections to a process on the node, which carries them.
func (m Mode) ByProcess() bool { return m.Capabilities().Has(LocalhostByProcess) }

// Capabilities returns what a mode has; zero for an unknown mode.
func (m Mode) Capabilities() Capability {
	switch m {
	case ModeIPTables:
		return common | LocalhostNodePorts | HairpinRemote | EmptyNodePortAnyAddr | NodePortBehindEmpty | DropsInvalid | FiltersTranslated | GuardsTranslated | ForwardsMarked
	case ModeNFTables:
		return common | RejectUndefinedPorts | DropUnallocated | GuardEmpty | GuardEmptyFromNode | EmptyFromNode | NodePortBehindEmpty | NodePortRefusesFirst | ProxiesLocalhost | StableBackends | FiltersTranslated | HairpinByAddress
	case ModeIPVS:
		return common | RejectUndefinedPorts | RejectUndefinedVIPPorts | GuardEmpty | MasqueradesOwnVIP | CarriesVIPs | LocalFallback | EmptyFromNode | ConfusesShared | HairpinByAddress
	case ModeKernelspace:
		return TrafficPolicies | KeepsClient | ServesSCTP | HealthPorts | NodePortBehindEmpty | OneBackendPort | EndpointsByKind
	case ModeUserspace:
		return Refuses | EmptyFromNode | AffinityTimeout | ListsNodePortAddresses | LocalhostNodePorts | LocalhostByProcess
	}
	return 0
}

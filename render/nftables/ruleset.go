package nftables

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Ruleset is one table: the complete state of a node in one family.
type Ruleset struct {
	Family ir.Family
	Chains []Chain // base chains, then the fixed ones, then the rest by name
	Sets   []Set   // the fixed ones in the order of their SetID, then affinity maps and sets of source ranges by name
	// KubeProxy reports whether the family also has kube-proxy's table, which is
	// removed when ours is added. It is set only in Rulesets read from a kernel.
	KubeProxy bool
	// Exists reports whether the table exists. Objects are its objects, which our
	// tables never have. Both are set only in Rulesets read from a kernel. Flags
	// are the table's flags, such as "dormant"; our tables have flags only if
	// they have an owner.
	Exists  bool
	Flags   string
	Objects []Object
}

// Object is a named (stateful) object of nf_tables, or a flowtable.
type Object struct {
	Kind ObjectKind
	Name string
}

// ObjectKind is the kernel's number of a kind of object.
type ObjectKind uint32

// Flowtable marks a flowtable, which is not an object in the kernel. The kernel
// does not use this number.
const Flowtable ObjectKind = 0

// String returns nft's keyword.
func (k ObjectKind) String() string {
	words := [...]string{"flowtable", "counter", "quota", "ct helper", "limit", "connlimit", "tunnel", "ct timeout", "secmark", "ct expectation", "synproxy"}
	if int(k) < len(words) {
		return words[k]
	}
	return "object of kind " + strconv.Itoa(int(k))
}

// Chain is a list of rules. Base chains are called by the kernel, others by rules
// and verdict elements.
type Chain struct {
	Name  string
	Base  *Base // nil except in base chains
	Rules []Rule
	Port  ir.ServicePort // the service port of the chain; zero if shared
}

// SameRules reports whether two chains of a family have the same rules.
func (c *Chain) SameRules(o *Chain, f ir.Family) bool {
	return slices.EqualFunc(c.Rules, o.Rules, func(a, b Rule) bool { return a.Text(f) == b.Text(f) })
}

// Base is the hook and priority at which the kernel calls a chain.
type Base struct {
	NAT      bool // type nat, for only the first packet of a connection; otherwise type filter
	Hook     Hook
	Priority int
	// Set only in chains that were read from a kernel or a listing.
	Drop        bool   // policy drop, for packets without a verdict
	Unsupported string // "type route"
}

// Destination reports whether the chain is at a hook where destinations are
// translated.
func (b *Base) Destination() bool { return b.Hook == Prerouting || b.Hook == Output }

// Hook is a hook of netfilter.
type Hook uint8

const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

// String returns nft's keyword.
func (h Hook) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[h]
}

// Priorities of base chains, as defined by nft and kube-proxy.
const (
	PriorityDNAT   = -100
	PriorityFilter = 0
	PrioritySNAT   = 100
	// PriorityConntrack is the priority at which the kernel starts to track
	// connections.
	PriorityConntrack = -200
)

// Rule is a list of statements: matches, each of which can end the rule, followed
// by actions.
type Rule struct {
	Stmts  []Stmt
	Origin ir.Origin
}

// Type is the type of one part of a key or of a map's data.
type Type uint8

const (
	TypeAddr  Type = iota // an address of the table's family
	TypeProto             // a transport protocol
	TypePort              // a port
	TypeSlot              // a number from 0 to N-1 that selects one of N backends
	TypeNet               // a range of addresses, in interval sets
)

// Set is a set, or a map if it has Data.
type Set struct {
	Name     string
	Key      []Type
	Data     Data
	Interval bool          // the last part of the key is a prefix
	Counter  bool          // each element has a counter
	Timeout  time.Duration // not 0: rules add elements, which expire after Timeout without use
	// Size is the maximum number of elements that rules may add: MaxClients by
	// default, or more if set. 0 in a set from a kernel or listing means that it
	// is unknown.
	Size     uint32
	Elements []Element
	Port     ir.ServicePort // of affinity maps and sets of shared pools
	Origin   ir.Origin      // the same
	Read
}

// Read is what a set that was read from a kernel or a listing has beside elements.
type Read struct {
	Unsupported string       // in its declaration: "size 10"
	Foreign     bool         // it has elements that Element cannot represent
	Permanent   bool         // of an affinity map: some of its elements do not expire
	Remembered  []netip.Addr // of an affinity map: the destinations of its elements, without duplicates
}

// UnsupportedKey returns why a Key cannot represent the keys of the set, or "".
func (s *Set) UnsupportedKey() string {
	var n [TypeNet + 1]int
	for i, t := range s.Key {
		if t == TypeNet && (!s.Interval || i != len(s.Key)-1) {
			return "a range within its key"
		}
		n[t]++
	}
	switch {
	case s.Interval && n[TypeNet] == 0:
		return "ranges of other than addresses"
	case n[TypeAddr]+n[TypeNet] > 2 || n[TypePort] > 2 || n[TypeProto] > 1 || n[TypeSlot] > 1:
		return "a key of too many parts"
	}
	return ""
}

// Anonymous is the prefix of the names of anonymous sets. No named set can have
// it.
const Anonymous = "anonymous "

// NoTimeout is the Timeout of a set that rules fill and whose elements do not
// expire.
const NoTimeout = 1

// MaxClients is the kernel's default size of a set that rules update.
const MaxClients = 65535

// Data is the type of data of a map's elements.
type Data uint8

const (
	NoData       Data = iota // a set
	VerdictData              // a verdict map
	AddrPortData             // address and port
	AddrData                 // address
)

// Key is the key of an element. A Set's Key defines the used parts and their
// order: its first TypeAddr is Addr, its second (or TypeNet) Addr2, its first
// TypePort Port, its second Port2. Keys are comparable within one set.
type Key struct {
	Addr  netip.Addr
	Addr2 netip.Addr
	Port  uint16
	Port2 uint16
	Slot  uint32
	Bits  uint8 // prefix length of Addr2, for TypeNet
	Proto ir.Protocol
}

// Element is one entry of a set or map.
type Element struct {
	Key     Key
	Verdict Verdict        // of VerdictData
	To      netip.AddrPort // of AddrPortData

	Frontend *ir.Frontend // the frontend of the element; nil if shared by frontends
	Origin   *ir.Origin
}

// Verdict ends the evaluation of a rule.
type Verdict struct {
	Kind  VerdictKind
	Chain string // of Jump and Goto; of RejectWith, the answer: "tcp reset"
}

// VerdictKind is the action of a verdict.
type VerdictKind uint8

const (
	Drop       VerdictKind = iota + 1
	Reject                 // ICMP port unreachable; not possible as a map's data
	Jump                   // to Chain, and return
	Goto                   // to Chain, and return to the caller of this chain
	Accept                 // final for this base chain
	Return                 // to the caller of this chain
	Continue               // with the next statement of the rule; only in elements
	RejectWith             // another answer than ICMP port unreachable; only in rules that were read
)

// SetID identifies one of the fixed sets and maps.
type SetID uint8

const (
	ServiceIPs          SetID = iota // verdict for an address and port
	ServicePorts                     // verdict for a node port
	InsideIPs                        // the same for pods and the node, if it depends on the source
	InsidePorts                      // the same for node ports
	OutsideIPs                       // the same for all other sources
	OutsidePorts                     // the same for node ports
	Backends                         // backends of an address and port by slot
	PortBackends                     // backends of a node port
	OutsideBackends                  // backends for OutsideIPs
	OutsidePortBackends              // backends for OutsidePorts
	NoEndpointIPs                    // addresses and ports that are rejected or dropped
	NoEndpointPorts                  // node ports that are rejected or dropped
	ClusterIPs                       // all ClusterIPs
	Hairpin                          // addresses of backends on this node, each as its own client
	AffinityAddrs                    // addresses of frontends with affinity
	AffinityIPs                      // connections with affinity, by backend and frontend
	AffinityPorts                    // the same for node ports
	AffinityPools                    // frontends with affinity of shared pools
	AffinityPortPools                // the same for node ports
	MaglevBackends                   // backends of an address and port by the client's slot
	MaglevPortBackends               // the same for a node port
	LocalhostPorts                   // node ports that are rejected at loopback addresses
	RestrictedIPs                    // addresses and ports with source ranges, which count what is dropped

	// CountIPs+k contains the frontends whose number of backends has bit k set.
	CountIPs
	CountPorts = CountIPs + countBits // the same for node ports
	setCount   = CountPorts + countBits
)

// fixedSets declares the fixed sets. Names are kube-proxy's for sets with the
// same purpose.
var fixedSets = withCounts([setCount]Set{
	ServiceIPs:          {Name: "service-ips", Key: frontendKey, Data: VerdictData},
	ServicePorts:        {Name: "service-nodeports", Key: nodePortKey, Data: VerdictData},
	InsideIPs:           {Name: "inside-ips", Key: frontendKey, Data: VerdictData},
	InsidePorts:         {Name: "inside-nodeports", Key: nodePortKey, Data: VerdictData},
	OutsideIPs:          {Name: "outside-ips", Key: frontendKey, Data: VerdictData},
	OutsidePorts:        {Name: "outside-nodeports", Key: nodePortKey, Data: VerdictData},
	Backends:            {Name: "backends", Key: append(frontendKey[:3:3], TypeSlot), Data: AddrPortData},
	PortBackends:        {Name: "nodeport-backends", Key: append(nodePortKey[:2:2], TypeSlot), Data: AddrPortData},
	OutsideBackends:     {Name: "outside-backends", Key: append(frontendKey[:3:3], TypeSlot), Data: AddrPortData},
	OutsidePortBackends: {Name: "outside-nodeport-backends", Key: append(nodePortKey[:2:2], TypeSlot), Data: AddrPortData},
	NoEndpointIPs:       {Name: "no-endpoint-services", Key: frontendKey, Data: VerdictData},
	NoEndpointPorts:     {Name: "no-endpoint-nodeports", Key: nodePortKey, Data: VerdictData},
	ClusterIPs:          {Name: "cluster-ips", Key: addrKey},
	Hairpin:             {Name: "hairpin-addresses", Key: []Type{TypeAddr, TypeAddr}},
	AffinityAddrs:       {Name: "affinity-addresses", Key: addrKey},
	AffinityIPs:         {Name: "affinity-ips", Key: append([]Type{TypeAddr, TypePort}, frontendKey...), Data: VerdictData},
	AffinityPorts:       {Name: "affinity-nodeports", Key: append([]Type{TypeAddr, TypePort}, nodePortKey...), Data: VerdictData},
	AffinityPools:       {Name: "affinity-pools", Key: frontendKey, Data: VerdictData},
	AffinityPortPools:   {Name: "affinity-nodeport-pools", Key: nodePortKey, Data: VerdictData},
	MaglevBackends:      {Name: "maglev-backends", Key: append(frontendKey[:3:3], TypeSlot), Data: AddrPortData},
	MaglevPortBackends:  {Name: "maglev-nodeport-backends", Key: append(nodePortKey[:2:2], TypeSlot), Data: AddrPortData},
	LocalhostPorts:      {Name: "localhost-nodeports", Key: nodePortKey},
	RestrictedIPs:       {Name: "restricted-ips", Key: frontendKey},
})

var (
	addrKey     = []Type{TypeAddr}
	netKey      = []Type{TypeNet}
	frontendKey = []Type{TypeAddr, TypeProto, TypePort}
	nodePortKey = []Type{TypeProto, TypePort}
	backendKey  = []Type{TypeAddr, TypePort}
	slotKey     = []Type{TypeProto, TypeSlot}
)

// Set returns the set's declaration, without elements.
func (s SetID) Set() *Set {
	set := fixedSets[s]
	return &set
}

// String returns the set's name.
func (s SetID) String() string {
	if s >= setCount {
		return "set " + strconv.Itoa(int(s))
	}
	return fixedSets[s].Name
}

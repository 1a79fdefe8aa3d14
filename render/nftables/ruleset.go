package nftables

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Ruleset is one table: all that a node needs in one family.
type Ruleset struct {
	Family ir.Family
	Chains []Chain // base chains, then the fixed ones, then the rest by name
	Sets   []Set   // the fixed ones in the order of their SetID, then affinity maps and sets of source ranges by name
	// KubeProxy reports whether the family has kube-proxy's table as well. Only what
	// was read from a kernel has it: the table goes when ours comes.
	KubeProxy bool
	// Exists reports whether the table is there, and Objects are those in it, which ours
	// never has. They, too, are of what was read from a kernel. Flags are the table's, as
	// "dormant"; ours has some only where it is to have an owner.
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

// Flowtable is no kind of object for the kernel; it is no number of one.
const Flowtable ObjectKind = 0

// String returns nft's word.
func (k ObjectKind) String() string {
	words := [...]string{"flowtable", "counter", "quota", "ct helper", "limit", "connlimit", "tunnel", "ct timeout", "secmark", "ct expectation", "synproxy"}
	if int(k) < len(words) {
		return words[k]
	}
	return "object of kind " + strconv.Itoa(int(k))
}

// Chain is a list of rules. Base chains are called by the kernel, the others
// by rules and verdict elements.
type Chain struct {
	Name  string
	Base  *Base // nil for other than base chains
	Rules []Rule
	Port  ir.ServicePort // the service port that it belongs to; zero if shared
}

// SameRules reports whether two chains of a family have the same rules.
func (c *Chain) SameRules(o *Chain, f ir.Family) bool {
	return slices.EqualFunc(c.Rules, o.Rules, func(a, b Rule) bool { return a.Text(f) == b.Text(f) })
}

// Base says where the kernel calls a chain.
type Base struct {
	NAT      bool // type nat: sees the first packet of a connection only; else type filter
	Hook     Hook
	Priority int
	// Of a chain that was read: what ours never have.
	Drop        bool   // the policy, of packets that no rule decides
	Unsupported string // "type route"
}

// Destination reports whether a chain stands at one of the hooks where destinations are translated.
func (b *Base) Destination() bool { return b.Hook == Prerouting || b.Hook == Output }

// Hook is a point in a packet's way through the kernel.
type Hook uint8

const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

// String returns nft's word.
func (h Hook) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[h]
}

// Priorities of base chains, as nft and kube-proxy know them.
const (
	PriorityDNAT   = -100
	PriorityFilter = 0
	PrioritySNAT   = 100
	// PriorityConntrack is where the kernel begins to track connections.
	PriorityConntrack = -200
)

// Rule is a list of statements: matches, each of which can end the rule, then
// what is done.
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
	TypeSlot              // a number from 0 to N-1: which of N backends
	TypeNet               // a range of addresses, in interval sets
)

// Set is a set or, with Data, a map.
type Set struct {
	Name     string
	Key      []Type
	Data     Data
	Interval bool          // the last part of the key is a prefix
	Timeout  time.Duration // not 0: rules add elements, which vanish after Timeout without use
	// Size is how many elements rules may add: MostClients by itself, more
	// after it was told so. Of a set that was read 0 means that it cannot be told.
	Size     uint32
	Elements []Element
	Port     ir.ServicePort // of affinity maps
	Origin   ir.Origin      // of affinity maps
	// Of a set that was read: what ours never have.
	Unsupported string       // in its declaration: "size 10"
	Strays      bool         // elements that none of the above can hold
	Permanent   bool         // of an affinity map: some of its elements do not expire
	Remembered  []netip.Addr // of an affinity map: where its elements lead to, each once
}

// OddShape returns why a Key cannot hold the keys of the set; "": it can.
func (s *Set) OddShape() string {
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

// Anonymous begins the names of sets that have none, which nobody else can give.
const Anonymous = "anonymous "

// NoTimeout is the Timeout of a set that rules fill and that forgets nothing.
const NoTimeout = 1

// MostClients is the size that the kernel gives a set without one when a rule updates it.
const MostClients = 65535

// Data says what a map's elements carry.
type Data uint8

const (
	NoData       Data = iota // a set
	VerdictData              // a verdict map
	AddrPortData             // address and port
	AddrData                 // address
)

// Key is the key of an element. A Set's Key says which parts count, and in
// which order: its first TypeAddr is Addr, its second (or TypeNet) Addr2, its
// first TypePort Port, its second Port2. Keys are comparable within one set.
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

	Frontend *ir.Frontend // what the element serves; nil if shared by frontends
	Origin   *ir.Origin
}

// Verdict ends the evaluation of a rule.
type Verdict struct {
	Kind  VerdictKind
	Chain string // of Jump and Goto
}

// VerdictKind is what a verdict does.
type VerdictKind uint8

const (
	Drop     VerdictKind = iota + 1
	Reject               // ICMP port unreachable; not possible as a map's data
	Jump                 // to Chain, and come back
	Goto                 // to Chain, and go on where this chain was jumped to from
	Accept               // done with this base chain
	Return               // go on where this chain was jumped to from
	Continue             // go on with the next statement of the rule, as an element's only
)

// SetID names one of the fixed sets and maps.
type SetID uint8

const (
	ServiceIPs          SetID = iota // how an address and port is served
	ServicePorts                     // how a node port is served
	InsideIPs                        // the same for pods and the node, where that depends on the source
	InsidePorts                      //
	OutsideIPs                       // the same for everybody else
	OutsidePorts                     //
	Backends                         // backends of an address and port by slot
	PortBackends                     // backends of a node port
	OutsideBackends                  // the same for those in OutsideIPs
	OutsidePortBackends              // the same for those in OutsidePorts
	NoEndpointIPs                    // what is refused or dropped
	NoEndpointPorts                  //
	FirewallAddrs                    // addresses with a frontend that only some sources may reach
	FirewallLists                    // what only some sources may reach: which
	ClusterIPs                       // all ClusterIPs
	Hairpin                          // backends on this node, each as its own client
	AffinityAddrs                    // addresses with a frontend whose connections affinity remembers
	AffinityIPs                      // which connections affinity remembers, by backend and frontend
	AffinityPorts                    //
	MaglevBackends                   // backends of an address and port by the client's slot
	MaglevPortBackends               // the same of a node port

	// CountIPs+k has the frontends in whose number of backends bit k is set.
	CountIPs
	CountPorts = CountIPs + countBits // the same for node ports
	setCount   = CountPorts + countBits
)

// fixedSets declares the fixed sets. Names are kube-proxy's where the thing is the same.
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
	FirewallAddrs:       {Name: "firewall-addresses", Key: addrKey},
	FirewallLists:       {Name: "firewall-lists", Key: frontendKey, Data: VerdictData},
	ClusterIPs:          {Name: "cluster-ips", Key: addrKey},
	Hairpin:             {Name: "hairpin-connections", Key: []Type{TypeAddr, TypeAddr, TypeProto, TypePort}},
	AffinityAddrs:       {Name: "affinity-addresses", Key: addrKey},
	AffinityIPs:         {Name: "affinity-ips", Key: append([]Type{TypeAddr, TypePort}, frontendKey...), Data: VerdictData},
	AffinityPorts:       {Name: "affinity-nodeports", Key: append([]Type{TypeAddr, TypePort}, nodePortKey...), Data: VerdictData},
	MaglevBackends:      {Name: "maglev-backends", Key: append(frontendKey[:3:3], TypeSlot), Data: AddrPortData},
	MaglevPortBackends:  {Name: "maglev-nodeport-backends", Key: append(nodePortKey[:2:2], TypeSlot), Data: AddrPortData},
})

var (
	addrKey     = []Type{TypeAddr}
	netKey      = []Type{TypeNet}
	frontendKey = []Type{TypeAddr, TypeProto, TypePort}
	nodePortKey = []Type{TypeProto, TypePort}
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

package sim

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Cuts collect the constants with which an evaluation compared the fields of its
// packet. Two packets that compare alike with each of them take the same path, so
// one represents the other. A nil *Cuts collects nothing.
//
// Destinations and protocols are not collected: the caller evaluates all
// protocols, and all destinations that the rules name.
type Cuts struct {
	Sources     []netip.Prefix
	SourceLists [][]netip.Prefix // of sources; read-only
	// SplitHairpins enables Hairpins. Otherwise these addresses are added to Sources.
	// Hairpins are addresses of backends. A client with such an address differs
	// from others only in the masquerading of its hairpin connection.
	SplitHairpins bool
	Hairpins      []netip.Addr
	Ports         [][]uint16 // lists of destination ports; read-only
	PortSets      []*PortSet // sets of destination ports, where only membership matters
	Ranges        []Ports    // of destination ports
	Interfaces    []Interface
	// Unknown are matches and statements with unknown meaning on the packet's
	// path. The Outcome may then be wrong.
	Unknown []string
	// Endless is the reason why an evaluation was given up; "" if it was
	// completed. If set, nothing is known about any packet.
	Endless string
}

// Ports are the ports from First to Last.
type Ports struct{ First, Last uint16 }

// JoinPorts sorts ports and merges adjacent ranges, in the same memory.
func JoinPorts(all []Ports) []Ports {
	slices.SortFunc(all, func(a, b Ports) int { return int(a.First) - int(b.First) })
	out := all[:0]
	for _, p := range all {
		if n := len(out); n > 0 && int(out[n-1].Last)+1 >= int(p.First) {
			out[n-1].Last = max(out[n-1].Last, p.Last)
		} else {
			out = append(out, p)
		}
	}
	return out
}

// PortSet is an immutable set of equivalent ports: a lookup depends only on
// membership.
type PortSet struct {
	in  [1 << 16 / 64]uint64
	all []Ports
}

// NewPortSet returns the set of the given ports.
func NewPortSet(ports []uint16) *PortSet {
	s := &PortSet{}
	for _, n := range ports {
		s.in[n/64] |= 1 << (n % 64)
		s.all = append(s.all, Ports{n, n})
	}
	s.all = JoinPorts(s.all)
	return s
}

// Has reports whether the set contains a destination port, and records the
// lookup.
func (s *PortSet) Has(port uint16, cuts *Cuts) bool {
	if cuts != nil {
		cuts.PortSets = append(cuts.PortSets, s)
	}
	return s.in[port/64]&(1<<(port%64)) != 0
}

// Ports returns the sorted and merged ports. The result is read-only.
func (s *PortSet) Ports() []Ports { return s.all }

// Interface is the name of an input interface, or a prefix of it.
type Interface struct {
	Name   string
	Prefix bool
}

// Matches reports whether an interface name matches.
func (i Interface) Matches(name string) bool {
	if i.Prefix {
		return len(name) >= len(i.Name) && name[:len(i.Name)] == i.Name
	}
	return name == i.Name
}

// Reset removes all collected constants.
func (c *Cuts) Reset() {
	*c = Cuts{c.Sources[:0], c.SourceLists[:0], c.SplitHairpins, c.Hairpins[:0], c.Ports[:0], c.PortSets[:0], c.Ranges[:0], c.Interfaces[:0], c.Unknown[:0], ""}
}

// Source records a comparison of the source address with a prefix.
func (c *Cuts) Source(p netip.Prefix) {
	if c != nil {
		c.Sources = append(c.Sources, p)
	}
}

// SourcesOf records a comparison of the source address with the prefixes of an
// immutable list. Lists are identified by their memory, so that many packets can
// record the same long list.
func (c *Cuts) SourcesOf(list []netip.Prefix) {
	if c != nil && len(list) > 0 {
		c.SourceLists = append(c.SourceLists, list)
	}
}

// SourceAddr records a comparison of the source address with another one.
func (c *Cuts) SourceAddr(a netip.Addr) {
	if c != nil {
		c.Sources = append(c.Sources, netip.PrefixFrom(a, a.BitLen()))
	}
}

// Hairpin records a comparison of the source address with that of a different
// backend, to detect a hairpin connection. The result affects only masquerading.
func (c *Cuts) Hairpin(a netip.Addr) {
	switch {
	case c == nil:
	case c.SplitHairpins:
		c.Hairpins = append(c.Hairpins, a)
	default:
		c.SourceAddr(a)
	}
}

// PortsOf records a lookup of the destination port in an immutable list.
func (c *Cuts) PortsOf(list []uint16) {
	if c != nil && len(list) > 0 {
		c.Ports = append(c.Ports, list)
	}
}

// Range records a comparison of the destination port with a range.
func (c *Cuts) Range(first, last uint16) {
	if c != nil {
		c.Ranges = append(c.Ranges, Ports{first, last})
	}
}

// Interface records a comparison of the input interface with a name.
func (c *Cuts) Interface(i Interface) {
	if c != nil {
		c.Interfaces = append(c.Interfaces, i)
	}
}

// Doubt records a part of the rules with unknown meaning.
func (c *Cuts) Doubt(what string) {
	if c != nil {
		c.Unknown = append(c.Unknown, what)
	}
}

// GiveUp records that an evaluation was given up.
func (c *Cuts) GiveUp(why string) {
	if c != nil {
		c.Endless = why
	}
}

// Doubts returns the sorted doubts without duplicates.
func (c *Cuts) Doubts() []string {
	all := slices.Clone(c.Unknown)
	if c.Endless != "" {
		all = append(all, c.Endless)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Own is a node's own state for evaluators of rules: its addresses, loopback
// included, and its bits of packet marks.
type Own struct {
	// Mark is the bits of packet marks that no other program uses. They are clear
	// in new packets. Other bits are unknown.
	Mark     uint32
	has      func(netip.Addr) bool
	prefixes []netip.Prefix
}

// NewOwn returns an Own with the given addresses and those of the loopback
// interface.
func NewOwn(loopback netip.Prefix, addrs []netip.Addr) *Own {
	known := make(map[netip.Addr]bool, len(addrs))
	o := &Own{has: func(a netip.Addr) bool { return a.IsLoopback() || known[a] }, prefixes: []netip.Prefix{loopback}}
	for _, a := range addrs {
		if !o.has(a) {
			known[a] = true
			o.prefixes = append(o.prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return o
}

// OwnOfNode returns the Own of a Program's node.
func OwnOfNode(p *ir.Program) *Own {
	own := NewOwn(p.Family.Loopback(), p.Node.Addrs)
	own.Mark = p.Node.MasqueradeMark()
	return own
}

// OwnOf returns an Own with the addresses for which has returns true. They cannot
// be enumerated, so comparisons with them are not recorded in Cuts.
func OwnOf(has func(netip.Addr) bool) *Own { return &Own{has: has} }

// With returns an Own with further addresses that the kernel delivers to the
// node, such as those of Services in mode ipvs. They are the source only of
// packets from the node to the same address.
func (o *Own) With(also func(netip.Addr) bool) *Own {
	return &Own{o.Mark, func(a netip.Addr) bool { return o.has(a) || also(a) }, o.prefixes}
}

// Has reports whether the node has an address.
func (o *Own) Has(a netip.Addr) bool { return o.has(a) }

// Prefixes calls add with the addresses, loopback first.
func (o *Own) Prefixes(add func(netip.Prefix)) {
	for _, p := range o.prefixes {
		add(p)
	}
}

// HasSource reports whether a packet's source is an address of the node, and
// records the comparison.
func (o *Own) HasSource(a netip.Addr, cuts *Cuts) bool {
	cuts.SourcesOf(o.prefixes)
	return o.has(a)
}

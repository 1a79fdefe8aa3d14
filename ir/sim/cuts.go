package sim

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Cuts collect the constants that a walk through rules compared with fields of
// its packet. Two packets that are on the same side of each of them take the
// same way, and so one stands for the other. A nil *Cuts collects nothing.
//
// Destinations and protocols are not collected: who asks goes through all
// protocols, and through all destinations that the rules name.
type Cuts struct {
	Sources     []netip.Prefix
	SourceLists [][]netip.Prefix // of sources, which are not to be changed
	// TellSelves is whether Selves are told apart from Sources. Selves are addresses of backends: a
	// client that has one is masqueraded where it is led to itself, and fares as others in all else.
	TellSelves bool
	Selves     []netip.Addr
	Ports      [][]uint16 // lists of destination ports, which are not to be changed
	PortSets   []*PortSet // of which destination ports are or are not; which of them does not count
	Ranges     []Ports    // of destination ports
	Interfaces []Interface
	// Unknown are matches and statements on the packet's way whose meaning is
	// not known: the Outcome may be another one.
	Unknown []string
	// Endless is why a walk was given up; "": it was not. Then nothing is known of
	// any packet.
	Endless string
}

// Ports are the ports First to Last.
type Ports struct{ First, Last uint16 }

// JoinPorts puts ports in order and makes one range of neighbours, in the same memory.
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

// PortSet are ports of which all count alike: who looks for a packet's among them
// asks for no more than whether it is there. It does not change.
type PortSet struct {
	in  [1 << 16 / 64]uint64
	all []Ports
}

// NewPortSet returns the set of some ports.
func NewPortSet(ports []uint16) *PortSet {
	s := &PortSet{}
	for _, n := range ports {
		s.in[n/64] |= 1 << (n % 64)
		s.all = append(s.all, Ports{n, n})
	}
	s.all = JoinPorts(s.all)
	return s
}

// Has reports whether a destination port is in the set, and notes that it was asked.
func (s *PortSet) Has(port uint16, cuts *Cuts) bool {
	if cuts != nil {
		cuts.PortSets = append(cuts.PortSets, s)
	}
	return s.in[port/64]&(1<<(port%64)) != 0
}

// Ports returns the ports in order, neighbours together. They are not to be changed.
func (s *PortSet) Ports() []Ports { return s.all }

// Interface is the name of an input interface, or how it begins.
type Interface struct {
	Name   string
	Prefix bool
}

// Holds reports whether an interface has the name, or one that begins like it.
func (i Interface) Holds(name string) bool {
	if i.Prefix {
		return len(name) >= len(i.Name) && name[:len(i.Name)] == i.Name
	}
	return name == i.Name
}

// Reset forgets what was collected.
func (c *Cuts) Reset() {
	*c = Cuts{c.Sources[:0], c.SourceLists[:0], c.TellSelves, c.Selves[:0], c.Ports[:0], c.PortSets[:0], c.Ranges[:0], c.Interfaces[:0], c.Unknown[:0], ""}
}

// Source notes that the source address was compared with a prefix.
func (c *Cuts) Source(p netip.Prefix) {
	if c != nil {
		c.Sources = append(c.Sources, p)
	}
}

// SourcesOf notes that the source address was compared with the prefixes of a list, which stays as
// it is. Who cuts there knows a list again by its place, so that many packets may note a long one.
func (c *Cuts) SourcesOf(list []netip.Prefix) {
	if c != nil && len(list) > 0 {
		c.SourceLists = append(c.SourceLists, list)
	}
}

// SourceAddr notes that the source address was compared with another one.
func (c *Cuts) SourceAddr(a netip.Addr) {
	if c != nil {
		c.Sources = append(c.Sources, netip.PrefixFrom(a, a.BitLen()))
	}
}

// Self notes that the source address, which is another one, was compared with that of a backend to see
// whether the client is led to itself, which decides about nothing but whether it is masqueraded there.
func (c *Cuts) Self(a netip.Addr) {
	switch {
	case c == nil:
	case c.TellSelves:
		c.Selves = append(c.Selves, a)
	default:
		c.SourceAddr(a)
	}
}

// PortsOf notes that the destination port was looked for in a list, which stays
// as it is.
func (c *Cuts) PortsOf(list []uint16) {
	if c != nil && len(list) > 0 {
		c.Ports = append(c.Ports, list)
	}
}

// Range notes that the destination port was compared with a range.
func (c *Cuts) Range(first, last uint16) {
	if c != nil {
		c.Ranges = append(c.Ranges, Ports{first, last})
	}
}

// Interface notes that the input interface was compared with a name.
func (c *Cuts) Interface(i Interface) {
	if c != nil {
		c.Interfaces = append(c.Interfaces, i)
	}
}

// Doubt notes that the packet met something whose meaning is not known.
func (c *Cuts) Doubt(what string) {
	if c != nil {
		c.Unknown = append(c.Unknown, what)
	}
}

// GiveUp notes that a walk was given up.
func (c *Cuts) GiveUp(why string) {
	if c != nil {
		c.Endless = why
	}
}

// Doubts returns what is not known of the packet, each once, in order.
func (c *Cuts) Doubts() []string {
	all := slices.Clone(c.Unknown)
	if c.Endless != "" {
		all = append(all, c.Endless)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Own is what a node has for itself, for evaluators of rules: its addresses,
// loopback included, and bits of packets' marks.
type Own struct {
	// Mark are the bits of marks that nobody else uses: they are clear when a packet
	// comes. Others are not known.
	Mark     uint32
	has      func(netip.Addr) bool
	prefixes []netip.Prefix
}

// NewOwn returns the addresses of a node that has addrs, and those of the
// loopback interface.
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

// OwnOfNode returns what the node of a Program has for itself.
func OwnOfNode(p *ir.Program) *Own {
	own := NewOwn(p.Family.Loopback(), p.Node.Addrs)
	own.Mark = p.Node.MasqueradeMark()
	return own
}

// OwnOf returns the addresses for which has holds. Nobody can list them, so that
// they are no help to Cuts.
func OwnOf(has func(netip.Addr) bool) *Own { return &Own{has: has} }

// With returns the addresses with others that the kernel delivers to the node, as
// those of Services in mode ipvs. They are the source of nothing but what the node
// sends to that very address.
func (o *Own) With(also func(netip.Addr) bool) *Own {
	return &Own{o.Mark, func(a netip.Addr) bool { return o.has(a) || also(a) }, o.prefixes}
}

// Has reports whether the node has an address.
func (o *Own) Has(a netip.Addr) bool { return o.has(a) }

// Prefixes returns the addresses, loopback first. They are not to be changed.
func (o *Own) Prefixes() []netip.Prefix { return o.prefixes }

// HasSource reports whether a packet's source is an address of the node, and notes it.
func (o *Own) HasSource(a netip.Addr, cuts *Cuts) bool {
	cuts.SourcesOf(o.prefixes)
	return o.has(a)
}

package prove

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// explorer evaluates the classes of packets, one destination after another. It
// divides a destination by ports, a port by interfaces, and an interface by
// sources, wherever an evaluated packet was compared with a constant.
type explorer struct {
	node  Node
	sides [2]Side
	own   []netip.Addr // sources of packets from the node, sorted
	isOwn map[netip.Addr]bool
	kinds *kinds // of ports, before any comparison
	cuts  sim.Cuts
	ended func() bool // reports whether the comparison must stop
	found             // for the current destination

	spare []finding // memory for the next found.list
	sure  []Difference
}

// found is the result for destinations.
type found struct {
	whole   int // number of compared destinations
	classes int
	list    []finding
	endless string // the reason for giving up
}

// maxClasses is the maximum number of classes of packets to one destination. A
// cluster's rules have at most some thousands.
const maxClasses = 1 << 21

// finding is a class whose packets are not proved to have the same outcome.
type finding struct {
	Difference
	unknown []string // unknown parts of the rules; empty if the outcomes differ
}

func (f *found) add(part found) {
	f.whole += part.whole
	f.classes += part.classes
	f.list = append(f.list, part.list...)
	f.endless = cmp.Or(f.endless, part.endless)
}

// handOver returns the certain differences and keeps the rest. The memory of both
// lists is reused by the explorer for its next destination.
func (f *found) handOver(e *explorer) (sure []Difference) {
	e.spare, sure = f.list[:0], e.sure[:0]
	var rest []finding
	for i := range f.list {
		if one := &f.list[i]; len(one.unknown) > 0 {
			rest = append(rest, *one)
		} else {
			sure = append(sure, one.Difference)
		}
	}
	f.list = rest
	return sure
}

// result divides the findings into certain differences and doubts.
func (f *found) result(sides ...Side) *Result {
	if f.endless != "" {
		return &Result{Doubts: []Doubt{{Unknown: []string{f.endless}}}}
	}
	r := &Result{Classes: f.classes}
	for _, one := range f.list {
		if len(one.unknown) > 0 {
			r.Doubts = append(r.Doubts, Doubt{one.Class, one.unknown})
		} else {
			r.Differences = append(r.Differences, one.Difference)
		}
	}
	if doubts := lastDoubts(sides...); len(doubts) > 0 {
		r.Doubts = append(r.Doubts, Doubt{Unknown: doubts})
	}
	return r
}

func newExplorer(n Node, a, b Side, ended func() bool) *explorer {
	e := &explorer{node: n, ended: ended, sides: [2]Side{a, b}, isOwn: map[netip.Addr]bool{}, kinds: &kinds{all: [][]sim.Ports{{{First: 1, Last: 65535}}}}}
	for _, addr := range n.Addrs {
		if n.Family.Has(addr) && !e.isOwn[addr] {
			e.isOwn[addr] = true
			e.own = append(e.own, addr)
		}
	}
	slices.SortFunc(e.own, netip.Addr.Compare)
	return e
}

// otherIn is the representative of unnamed interfaces, until a rule names it.
const otherIn = "eth0"

// stops reports whether the destination has too many classes, or the comparison
// has ended.
func (e *explorer) stops() bool { return e.endless != "" || e.ended() }

// explore compares the outcomes of all packets to a destination. The result is
// invalid if the comparison ended meanwhile, because classes are then not fully
// divided.
func (e *explorer) explore(d destination) found {
	e.found = found{list: e.spare}
	e.spare = nil
	for _, protocol := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		from := len(e.list)
		ports := newPorts(e.kinds)
		for port := ports.next(); port != 0 && !e.stops(); port = ports.next() {
			e.port(d, protocol, ports, port)
		}
		list := e.list[from:]
		for i := range list {
			ports.complete(&list[i].Class)
		}
		slices.SortStableFunc(list, func(a, b finding) int { return a.compare(&b.Class) })
	}
	return e.found
}

// port compares packets to one of the ports, and divides ports, if not nil, at
// recorded constants.
func (e *explorer) port(d destination, protocol ir.Protocol, ports *ports, port uint16) {
	class := Class{Dst: d.Addrs, Rest: d.rest, Protocol: protocol,
		Packet: sim.Packet{Dst: d.First, Protocol: protocol, Port: port}}
	ways := interfaces{names: []string{"", otherIn}}
	if d.First.IsLoopback() {
		ways.names = ways.names[:1] // no packet to it arrives from outside
	}
	begin := len(e.list)
	defer func() {
		for i := range e.list[begin:] {
			e.list[begin+i].Named = ways.known
		}
	}()
	for j := 0; j < len(ways.names) && !e.stops(); j++ {
		class.Packet.In = ways.names[j]
		sources := newSources(e.node.Family, class.neverSource())
		from := len(e.list)
		for k := 0; k < len(sources.firsts) && !e.stops(); k++ {
			src, ok := e.source(&class, sources.firsts[k])
			if !ok || sources.asked[src] {
				continue
			}
			sources.asked[src] = true
			class.Packet.Src = src
			e.ask(&class)
			if ports != nil {
				ports.cutAt(&e.cuts)
			}
			if !d.First.IsLoopback() {
				for _, in := range e.cuts.Interfaces {
					ways.cut(in)
				}
			}
			for _, p := range e.cuts.Sources {
				sources.cut(p)
			}
			for _, list := range e.cuts.SourceLists {
				sources.cutAll(list)
			}
		}
		slices.SortFunc(sources.firsts, netip.Addr.Compare)
		for i := range e.list[from:] {
			c := &e.list[from+i].Class
			c.AnyIn = c.Packet.In == ways.other()
			c.Src = sources.of(c.Packet.Src)
		}
	}
}

// sources are the first addresses of the classes of sources.
type sources struct {
	family ir.Family
	last   netip.Addr // of all
	never  netip.Addr // see Class.neverSource
	firsts []netip.Addr
	known  map[netip.Addr]bool
	lists  map[*netip.Prefix]int // lists that were applied, with their lengths
	asked  map[netip.Addr]bool
}

func newSources(f ir.Family, never netip.Addr) *sources {
	lowest := f.Any().Addr()
	return &sources{family: f, last: ir.LastOf(f.Any()), never: never, firsts: []netip.Addr{lowest}, known: map[netip.Addr]bool{lowest: true},
		lists: map[*netip.Prefix]int{}, asked: map[netip.Addr]bool{}}
}

// of returns the class of a source. All classes must be known and sorted. The
// class of an evaluated source may differ from the one for which it was chosen:
// see explorer.source.
func (s *sources) of(src netip.Addr) Addrs {
	next, found := slices.BinarySearchFunc(s.firsts, src, netip.Addr.Compare)
	if found {
		next++
	}
	c := Addrs{s.firsts[next-1], s.last}
	if next < len(s.firsts) {
		c.Last = s.firsts[next].Prev()
	}
	return c
}

// cutAll divides the classes at the prefixes of a list. It applies a list only
// once, because traversing a long list for each class is expensive.
func (s *sources) cutAll(list []netip.Prefix) {
	done := s.lists[&list[0]]
	if done >= len(list) {
		return
	}
	s.lists[&list[0]] = len(list)
	for _, p := range list[done:] {
		s.cut(p)
	}
}

func (s *sources) cut(p netip.Prefix) {
	if !s.family.Has(p.Addr()) || p.IsSingleIP() && p.Addr() == s.never {
		return
	}
	for _, a := range [...]netip.Addr{p.Masked().Addr(), ir.LastOf(p).Next()} {
		if a.IsValid() && !s.known[a] {
			s.known[a] = true
			s.firsts = append(s.firsts, a)
		}
	}
}

// ask compares the outcomes of one packet.
func (e *explorer) ask(c *Class) {
	e.classes++
	e.cuts.Reset()
	a := e.sides[0].Outcome(c.Packet, &e.cuts)
	n := len(e.cuts.Hairpins)
	b := e.sides[1].Outcome(c.Packet, &e.cuts)
	e.cutHairpins(a.Destinations, b.Destinations, e.cuts.Hairpins[:n], e.cuts.Hairpins[n:])
	if e.endless = e.cuts.Endless; e.endless == "" && e.classes == maxClasses {
		e.endless = fmt.Sprintf("more than %d classes of packets to %s", maxClasses, c.Dst.First)
	}
	if len(e.cuts.Unknown) > 0 || !a.Equal(b) {
		e.list = append(e.list, finding{Difference{*c, a, b}, slices.Clone(e.cuts.Unknown)})
	}
}

// cutHairpins divides the sources at the backends whose own connections differ from
// those of other clients. In one case, a client that is the backend is
// masqueraded on only one side. In the other case, the sides differ only at that
// backend, and are equal for that client. a and b are the sorted destinations of
// other clients. selvesA and selvesB are the backends that are masqueraded for
// themselves.
func (e *explorer) cutHairpins(a, b []sim.Destination, selvesA, selvesB []netip.Addr) {
	if len(selvesA)+len(selvesB) == 0 {
		return
	}
	slices.SortFunc(selvesA, netip.Addr.Compare)
	slices.SortFunc(selvesB, netip.Addr.Compare)
	differ, last := 0, netip.Addr{} // number of addresses that differ, and the last of them
	for len(a)+len(b) > 0 {
		addr := firstAddr(a, b)
		var atA, atB []sim.Destination
		atA, a = cutAddr(a, addr)
		atB, b = cutAddr(b, addr)
		if !slices.Equal(atA, atB) {
			differ, last = differ+1, addr
		}
		selfA, selfB := has(selvesA, addr), has(selvesB, addr)
		if selfA != selfB && len(atA) > 0 && len(atB) > 0 && (selfA || masked(atA)) != (selfB || masked(atB)) {
			e.cuts.SourceAddr(addr)
		}
	}
	if differ == 1 && (has(selvesA, last) || has(selvesB, last)) {
		e.cuts.SourceAddr(last)
	}
}

// has reports whether a sorted list contains an address.
func has(list []netip.Addr, addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(list, addr, netip.Addr.Compare)
	return found
}

// masked reports whether all connections to the destinations are masqueraded.
func masked(at []sim.Destination) bool {
	return !slices.ContainsFunc(at, func(d sim.Destination) bool { return !d.SNAT })
}

// firstAddr returns the lowest address of two sorted lists, one of which may be
// empty.
func firstAddr(a, b []sim.Destination) netip.Addr {
	if len(a) == 0 || len(b) > 0 && b[0].AddrPort.Addr().Less(a[0].AddrPort.Addr()) {
		return b[0].AddrPort.Addr()
	}
	return a[0].AddrPort.Addr()
}

// cutAddr splits a list after its leading destinations with an address.
func cutAddr(all []sim.Destination, addr netip.Addr) (of, rest []sim.Destination) {
	n := 0
	for n < len(all) && all[n].AddrPort.Addr() == addr {
		n++
	}
	return all[:n], all[n:]
}

// source returns the packet's source for the class of sources that begins at
// first. Incoming packets never have an address of the node as source; packets
// from the node always do. ok is false if no source of the class is possible, or
// if it belongs to another class.
func (e *explorer) source(c *Class, first netip.Addr) (src netip.Addr, ok bool) {
	if !c.Packet.FromNode() {
		never := c.neverSource()
		for src = first; src.IsValid() && (e.isOwn[src] || src == never || src.IsLoopback() || e.carries(src)); src = src.Next() {
			if src.IsLoopback() && src.Is4() {
				src = netip.AddrFrom4([4]byte{127, 255, 255, 255})
			}
		}
		return src, src.IsValid()
	}
	own := e.own
	if dst := c.Packet.Dst; dst.IsLoopback() || !e.isOwn[dst] && e.carries(dst) {
		own = []netip.Addr{dst} // the kernel uses it as the source, too
	}
	i, _ := slices.BinarySearchFunc(own, first, netip.Addr.Compare)
	if i == len(own) {
		return netip.Addr{}, false
	}
	return own[i], true
}

// neverSource returns the address that no incoming packet has as source: its
// destination, because a machine delivers packets to itself. It is invalid if
// there is none.
func (c *Class) neverSource() netip.Addr {
	if c.Packet.FromNode() || c.Dst.First != c.Dst.Last {
		return netip.Addr{}
	}
	return c.Dst.First
}

// carries reports whether the node carries an address of a Service.
func (e *explorer) carries(a netip.Addr) bool { return e.node.Carries != nil && e.node.Carries(a) }

// interfaces are the names of input interfaces, one for each class: "" for
// packets from the node, one for each constant in a rule, and one that matches no
// constant.
type interfaces struct {
	names []string
	known []sim.Interface
}

// cut adds a constant. A class whose name matches the new constant may need
// another name.
func (w *interfaces) cut(in sim.Interface) {
	if slices.Contains(w.known, in) || in == (sim.Interface{Prefix: true}) {
		return
	}
	w.known = append(w.known, in)
	for _, k := range w.known {
		if name := w.of(k); !slices.Contains(w.names, name) {
			w.names = append(w.names, name)
		}
	}
	if other := w.other(); !slices.Contains(w.names, other) {
		w.names = append(w.names, other)
	}
}

// of returns a name that matches a constant and no more specific one, or "" if
// there is none.
func (w *interfaces) of(in sim.Interface) string {
	if !in.Prefix {
		return in.Name
	}
	narrower := func(name string) bool {
		return slices.ContainsFunc(w.known, func(k sim.Interface) bool {
			return k.Matches(name) && (!k.Prefix || len(k.Name) > len(in.Name))
		})
	}
	name := in.Name
	for n := 0; narrower(name); n++ {
		name = in.Name + strconv.Itoa(n)
	}
	return name
}

// other returns a name that matches no constant.
func (w *interfaces) other() string {
	holds := func(name string) bool {
		return slices.ContainsFunc(w.known, func(in sim.Interface) bool { return in.Matches(name) })
	}
	name := otherIn
	for first := 'a'; holds(name); first++ { // most first letters occur in no constant
		name = string(first) + "other0"
	}
	return name
}

func (c *Class) compare(o *Class) int {
	return cmp.Or(c.Dst.First.Compare(o.Dst.First), cmp.Compare(c.Protocol, o.Protocol), cmp.Compare(c.Packet.Port, o.Packet.Port),
		cmp.Compare(c.Packet.In, o.Packet.In), c.Src.First.Compare(o.Src.First))
}

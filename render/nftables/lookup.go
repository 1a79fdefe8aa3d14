package nftables

import (
	"net/netip"
	"slices"
)

// indexed is a set in which elements are found at once, and what else packets
// might have found there.
type indexed struct {
	*Set
	odd    string             // why what packets find there is not known; "": it is
	full   map[Key]*Element   // of sets without intervals
	ranges map[Key][]*Element // of sets with intervals: by the key without them, in order, none in another
	others []siblings
}

// parts are places in a Key.
type parts uint8

const (
	partAddr parts = 1 << iota
	partAddr2
	partPort
	partPort2
	partSlot
)

// siblings are the elements of a set by all of their key but the parts that
// vary with the packet: what they differ in tells packets apart.
type siblings struct {
	src, port parts
	sources   map[Key][]netip.Prefix // by the key without the sources
	ports     map[Key][]uint16       // by the key without sources, ports and slot
}

// oddShape returns why keys of a type cannot be told apart by a Key; "": they can.
func oddShape(key []Type, interval bool) string {
	var n [TypeNet + 1]int
	for i, t := range key {
		if t == TypeNet && (!interval || i != len(key)-1) {
			return "a range within its key"
		}
		n[t]++
	}
	switch {
	case interval && n[TypeNet] == 0:
		return "ranges of other than addresses"
	case n[TypeAddr]+n[TypeNet] > 2 || n[TypePort] > 2 || n[TypeProto] > 1 || n[TypeSlot] > 1:
		return "a key of too many parts"
	}
	return ""
}

// fits reports whether a lookup asks for what the keys of the set are.
func (l *indexed) fits(terms []Term) bool {
	if len(terms) != len(l.Key) {
		return false
	}
	for i, t := range terms {
		if of := typeOf(t.Field); of != l.Key[i] && (of != TypeAddr || l.Key[i] != TypeNet) {
			return false
		}
	}
	return true
}

// partsOf returns the places in the set's keys that a lookup fills from fields for
// which from holds. The address of an interval is always the second.
func (l *indexed) partsOf(terms []Term, from func(Field) bool) (p parts) {
	addr, port := partAddr, partPort
	for i, t := range terms {
		var at parts
		switch l.Key[i] {
		case TypeAddr:
			at, addr = addr, partAddr2
		case TypeNet:
			at = partAddr2
		case TypePort:
			at, port = port, partPort2
		case TypeSlot:
			at = partSlot
		}
		if from(t.Field) {
			p |= at
		}
	}
	return p
}

func isSource(f Field) bool { return f == SrcAddr || f == OrigSrcAddr }

func isDestination(f Field) bool { return f == DstAddr || f == OrigDstAddr }

// isPort and isOrigPort hold for the port to which the packet came, as long as
// nothing has translated it, and behind that.
func isPort(f Field) bool     { return f == DstPort || f == OrigDstPort }
func isOrigPort(f Field) bool { return f == OrigDstPort }

// prefixes returns the addresses of a key in some places, in a set of that type.
func (k *Key) prefixes(in parts, s *Set) (all []netip.Prefix) {
	if in&partAddr != 0 {
		all = append(all, netip.PrefixFrom(k.Addr, k.Addr.BitLen()))
	}
	if in&partAddr2 != 0 {
		all = append(all, k.second(s))
	}
	return all
}

// second is the second address, or the interval.
func (k *Key) second(s *Set) netip.Prefix {
	if s.Interval {
		return netip.PrefixFrom(k.Addr2, int(k.Bits))
	}
	return netip.PrefixFrom(k.Addr2, k.Addr2.BitLen())
}

// without returns the key without some parts, and without the interval, in which no
// packet's key equals an element's.
func (l *indexed) without(k Key, p parts) Key {
	if l.Interval {
		p |= partAddr2
	}
	if p&partAddr != 0 {
		k.Addr = netip.Addr{}
	}
	if p&partAddr2 != 0 {
		k.Addr2, k.Bits = netip.Addr{}, 0
	}
	if p&partPort != 0 {
		k.Port = 0
	}
	if p&partPort2 != 0 {
		k.Port2 = 0
	}
	if p&partSlot != 0 {
		k.Slot = 0
	}
	return k
}

// newIndexed prepares lookups in a set.
func newIndexed(s *Set) *indexed {
	l := &indexed{Set: s, odd: s.Unsupported}
	if l.odd == "" {
		l.odd = oddShape(s.Key, s.Interval)
	}
	switch {
	case l.odd != "":
		return l
	case s.Strays:
		l.odd = "elements of another form"
	case s.Permanent:
		l.odd = "a client that it never forgets"
	}
	l.full, l.ranges = map[Key]*Element{}, map[Key][]*Element{}
	for i := range l.Elements {
		e := &l.Elements[i]
		switch {
		case l.Interval:
			at := l.without(e.Key, 0)
			l.ranges[at] = append(l.ranges[at], e)
		case l.full[e.Key] != nil:
			l.odd = "an element twice"
		default:
			l.full[e.Key] = e
		}
	}
	for _, list := range l.ranges {
		slices.SortFunc(list, func(a, b *Element) int { return a.Key.Addr2.Compare(b.Key.Addr2) })
		for i := range list[1:] {
			if list[i].Key.second(s).Overlaps(list[i+1].Key.second(s)) {
				l.odd = "intervals that overlap" // which the kernel refuses
			}
		}
	}
	return l
}

// index prepares telling what lookups of a key tell apart.
func (l *indexed) index(terms []Term) {
	if l.full == nil || !l.fits(terms) {
		return
	}
	for _, port := range [...]func(Field) bool{isPort, isOrigPort} {
		s := siblings{src: l.partsOf(terms, isSource), port: l.partsOf(terms, port)}
		if slices.ContainsFunc(l.others, func(o siblings) bool { return o.src == s.src && o.port == s.port }) {
			continue
		}
		s.sources, s.ports = map[Key][]netip.Prefix{}, map[Key][]uint16{}
		for i := range l.Elements {
			k := l.Elements[i].Key
			if s.src != 0 {
				at := l.without(k, s.src)
				s.sources[at] = append(s.sources[at], k.prefixes(s.src, l.Set)...)
			}
			at := l.without(k, s.src|s.port|partSlot)
			if s.port&partPort != 0 {
				s.ports[at] = withPort(s.ports[at], k.Port)
			}
			if s.port&partPort2 != 0 {
				s.ports[at] = withPort(s.ports[at], k.Port2)
			}
		}
		l.others = append(l.others, s)
	}
}

func withPort(list []uint16, n uint16) []uint16 {
	if len(list) > 0 && list[len(list)-1] == n {
		return list
	}
	return append(list, n)
}

// find returns the element of a key; nil: there is none.
func (l *indexed) find(key Key) *Element {
	if !l.Interval {
		return l.full[key]
	}
	list := l.ranges[l.without(key, 0)]
	i, found := slices.BinarySearchFunc(list, key.Addr2, func(e *Element, a netip.Addr) int { return e.Key.Addr2.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && list[i].Key.second(l.Set).Contains(key.Addr2) {
		return list[i]
	}
	return nil
}

// cut tells what packets the set tells apart from that of a walk.
func (l *indexed) cut(w *walk, key Key, terms []Term) {
	port := isPort
	if w.dnat {
		port = isOrigPort
	}
	src, ports := l.partsOf(terms, isSource), l.partsOf(terms, port)
	for i := range l.others {
		s := &l.others[i]
		if s.port != ports || s.src != src {
			continue
		}
		if src != 0 {
			w.cuts.SourcesOf(s.sources[l.without(key, src)])
		}
		if ports != 0 {
			w.cuts.PortsOf(s.ports[l.without(key, src|ports|partSlot)])
		}
		return
	}
}

package eval

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/render/nftables"
)

// indexed is a set with fast lookup, and with the constants that lookups compare.
type indexed struct {
	*nftables.Set
	odd    string                               // why the result of a lookup is unknown, or ""
	full   map[nftables.Key]*nftables.Element   // of sets without intervals
	ranges map[nftables.Key][]*nftables.Element // of sets with intervals: by the key without them, sorted, without nesting
	others []siblings
}

// parts are parts of a Key.
type parts uint8

const (
	partAddr parts = 1 << iota
	partAddr2
	partPort
	partPort2
	partSlot
)

// siblings are the elements of a set grouped by their key without the parts that
// vary with the packet. The differing parts distinguish packets.
type siblings struct {
	src, port parts
	sources   map[nftables.Key][]netip.Prefix // by the key without the sources
	ports     map[nftables.Key][]uint16       // by the key without sources, ports and slot
}

// fits reports whether a lookup has the key type of the set.
func (l *indexed) fits(terms []nftables.Term) bool {
	if len(terms) != len(l.Key) {
		return false
	}
	for i, t := range terms {
		if of := t.Field.Type(); of != l.Key[i] && (of != nftables.TypeAddr || l.Key[i] != nftables.TypeNet) {
			return false
		}
	}
	return true
}

// partsOf returns the parts of the set's keys that a lookup takes from fields for
// which from returns true. The address of an interval is always the second.
func (l *indexed) partsOf(terms []nftables.Term, from func(nftables.Field) bool) (p parts) {
	addr, port := partAddr, partPort
	for i, t := range terms {
		var at parts
		switch l.Key[i] {
		case nftables.TypeAddr:
			at, addr = addr, partAddr2
		case nftables.TypeNet:
			at = partAddr2
		case nftables.TypePort:
			at, port = port, partPort2
		case nftables.TypeSlot:
			at = partSlot
		}
		if from(t.Field) {
			p |= at
		}
	}
	return p
}

func isSource(f nftables.Field) bool { return f == nftables.SrcAddr || f == nftables.OrigSrcAddr }

func isDestination(f nftables.Field) bool { return f == nftables.DstAddr || f == nftables.OrigDstAddr }

// isPort reports whether a field is the port of an untranslated packet;
// isOrigPort reports it for a translated one.
func isPort(f nftables.Field) bool     { return f == nftables.DstPort || f == nftables.OrigDstPort }
func isOrigPort(f nftables.Field) bool { return f == nftables.OrigDstPort }

// prefixes returns the addresses in some parts of a key of the set.
func prefixes(k *nftables.Key, in parts, s *nftables.Set) (all []netip.Prefix) {
	if in&partAddr != 0 {
		all = append(all, netip.PrefixFrom(k.Addr, k.Addr.BitLen()))
	}
	if in&partAddr2 != 0 {
		all = append(all, second(k, s))
	}
	return all
}

// second returns the second address, or the interval.
func second(k *nftables.Key, s *nftables.Set) netip.Prefix {
	if s.Interval {
		return netip.PrefixFrom(k.Addr2, int(k.Bits))
	}
	return netip.PrefixFrom(k.Addr2, k.Addr2.BitLen())
}

// without returns the key without some parts, and without the interval, which is
// not compared for equality.
func (l *indexed) without(k nftables.Key, p parts) nftables.Key {
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

// newIndexed indexes a set.
func newIndexed(s *nftables.Set) *indexed {
	l := &indexed{Set: s, odd: s.Unsupported}
	if l.odd == "" {
		l.odd = s.UnsupportedKey()
	}
	switch {
	case l.odd != "":
		return l
	case s.Foreign:
		l.odd = "elements of another form"
	case s.Permanent:
		l.odd = "a client that it never forgets"
	}
	l.full, l.ranges = map[nftables.Key]*nftables.Element{}, map[nftables.Key][]*nftables.Element{}
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
		slices.SortFunc(list, func(a, b *nftables.Element) int { return a.Key.Addr2.Compare(b.Key.Addr2) })
		for i := range list[1:] {
			if second(&list[i].Key, s).Overlaps(second(&list[i+1].Key, s)) {
				l.odd = "intervals that overlap" // the kernel rejects these
			}
		}
	}
	return l
}

// index prepares recording the constants that lookups of a key compare.
func (l *indexed) index(terms []nftables.Term) {
	if l.full == nil || !l.fits(terms) {
		return
	}
	for _, port := range [...]func(nftables.Field) bool{isPort, isOrigPort} {
		s := siblings{src: l.partsOf(terms, isSource), port: l.partsOf(terms, port)}
		if slices.ContainsFunc(l.others, func(o siblings) bool { return o.src == s.src && o.port == s.port }) {
			continue
		}
		s.sources, s.ports = map[nftables.Key][]netip.Prefix{}, map[nftables.Key][]uint16{}
		for i := range l.Elements {
			k := l.Elements[i].Key
			if s.src != 0 {
				at := l.without(k, s.src)
				s.sources[at] = append(s.sources[at], prefixes(&k, s.src, l.Set)...)
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

// find returns the element of a key, or nil.
func (l *indexed) find(key nftables.Key) *nftables.Element {
	if !l.Interval {
		return l.full[key]
	}
	list := l.ranges[l.without(key, 0)]
	i, found := slices.BinarySearchFunc(list, key.Addr2, func(e *nftables.Element, a netip.Addr) int { return e.Key.Addr2.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && second(&list[i].Key, l.Set).Contains(key.Addr2) {
		return list[i]
	}
	return nil
}

// cut records the constants with which a lookup distinguishes packets.
func (l *indexed) cut(w *walk, key nftables.Key, terms []nftables.Term) {
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

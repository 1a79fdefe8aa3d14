package nftables

import (
	"net/netip"
	"slices"
)

// indexed is a set in which elements are found at once, and what else packets
// might have found there.
type indexed struct {
	*Set
	full   map[Key]*Element   // of sets without intervals
	ranges map[Key][]*Element // of sets with intervals: by the key without them
	others []siblings
}

// siblings are the elements of a set by all of their key but the parts that
// vary with the packet: what they differ in tells packets apart.
type siblings struct {
	src, port part
	sources   map[Key][]netip.Prefix // by the key without the source
	ports     map[Key][]uint16       // by the key without source, port and slot
}

// part is a place in a Key: 0 none, 1 the first address or port, 2 the second.
type part uint8

// addrPart returns the place in the set's keys of the address that a lookup takes
// from one of the packet's fields.
func (l *indexed) addrPart(terms []Term, fields ...Field) part {
	n := part(0)
	for i, t := range terms {
		switch l.Key[i] {
		case TypeAddr:
			n++
		case TypeNet:
			n = 2
		default:
			continue
		}
		if slices.Contains(fields, t.Field) {
			return n
		}
	}
	return 0
}

// portPart returns addrPart for the port to which the packet came, as long as nothing
// has translated it.
func portPart(terms []Term, translated bool) part {
	n := part(0)
	for _, t := range terms {
		switch t.Field {
		case DstPort, OrigDstPort:
			if n++; t.Field == OrigDstPort || !translated {
				return n
			}
		}
	}
	return 0
}

// prefix returns an address of a key, in a set of that type.
func (k *Key) prefix(p part, s *Set) netip.Prefix {
	if p == 1 {
		return netip.PrefixFrom(k.Addr, k.Addr.BitLen())
	}
	if s.Interval {
		return netip.PrefixFrom(k.Addr2, int(k.Bits))
	}
	return netip.PrefixFrom(k.Addr2, k.Addr2.BitLen())
}

func (k Key) withoutAddr(p part) Key {
	switch p {
	case 1:
		k.Addr = netip.Addr{}
	case 2:
		k.Addr2, k.Bits = netip.Addr{}, 0
	}
	return k
}

func (k Key) withoutPort(p part) Key {
	switch p {
	case 1:
		k.Port = 0
	case 2:
		k.Port2 = 0
	}
	k.Slot = 0
	return k
}

// index prepares lookups of a key.
func (l *indexed) index(terms []Term) {
	if l.full == nil && l.ranges == nil {
		l.full, l.ranges = map[Key]*Element{}, map[Key][]*Element{}
		for i := range l.Elements {
			e := &l.Elements[i]
			if l.Interval {
				l.ranges[e.Key.withoutAddr(2)] = append(l.ranges[e.Key.withoutAddr(2)], e)
			} else {
				l.full[e.Key] = e
			}
		}
	}
	for _, translated := range [...]bool{false, true} {
		s := siblings{src: l.addrPart(terms, SrcAddr, OrigSrcAddr), port: portPart(terms, translated)}
		if slices.ContainsFunc(l.others, func(o siblings) bool { return o.src == s.src && o.port == s.port }) {
			continue
		}
		s.sources, s.ports = map[Key][]netip.Prefix{}, map[Key][]uint16{}
		for i := range l.Elements {
			e := &l.Elements[i]
			without := e.Key.withoutAddr(s.src)
			if s.src != 0 {
				s.sources[without] = append(s.sources[without], e.Key.prefix(s.src, l.Set))
			}
			n := e.Key.Port
			switch s.port {
			case 0:
				continue
			case 2:
				n = e.Key.Port2
			}
			without = without.withoutPort(s.port)
			if ports := s.ports[without]; len(ports) == 0 || ports[len(ports)-1] != n {
				s.ports[without] = append(ports, n)
			}
		}
		l.others = append(l.others, s)
	}
}

// find returns the element of a key; nil: there is none.
func (l *indexed) find(key Key) *Element {
	if !l.Interval {
		return l.full[key]
	}
	for _, e := range l.ranges[key.withoutAddr(2)] {
		if e.Key.prefix(2, l.Set).Contains(key.Addr2) {
			return e
		}
	}
	return nil
}

// cut tells what packets the set tells apart from that of a walk.
func (l *indexed) cut(w *walk, key Key, terms []Term) {
	src, port := l.addrPart(terms, SrcAddr, OrigSrcAddr), portPart(terms, w.dnat)
	for i := range l.others {
		s := &l.others[i]
		if s.port != port || s.src != src {
			continue
		}
		without := key.withoutAddr(src)
		if src != 0 {
			for _, p := range s.sources[without] {
				w.cuts.Source(p)
			}
		}
		if port != 0 {
			w.cuts.PortsOf(s.ports[without.withoutPort(port)])
		}
		return
	}
}

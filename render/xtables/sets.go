package xtables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// Sets is the parsed output of ipset save.
type Sets struct {
	byName map[string]*set
	failed string // reason if they are unknown
}

// set is an ipset.
type set struct {
	parts    []string // "ip", "net", "port", "iface"; for a list: "set"
	mask     int      // prefix length applied to addresses before comparison; -1 for none
	odd      string   // why its elements are not supported
	elements []element
}

// element is an entry, with one value for each part.
type element struct {
	values  []value
	nomatch bool
}

// value is a range of addresses, a range of ports of a protocol, an interface or
// a set.
type value struct {
	first, last netip.Addr
	bits        int // prefix length, for specificity
	protocol    ir.Protocol
	low, high   uint16
	name        string
}

// UnknownSets returns Sets whose contents are unknown, with the reason.
func UnknownSets(why string) *Sets { return &Sets{failed: why} }

// ParseSets parses the output of ipset save.
func ParseSets(text string) (*Sets, error) {
	all := &Sets{byName: map[string]*set{}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		words := iptparse.SavedWords(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case len(words) >= 3 && words[0] == "create":
			all.byName[words[1]] = newSet(words[2], words[3:])
		case len(words) >= 3 && words[0] == "add" && all.byName[words[1]] != nil:
			all.byName[words[1]].add(words[2], words[3:])
		default:
			return nil, fmt.Errorf("line %d: %q: is nothing that ipset save prints", n, strings.TrimSpace(line))
		}
	}
	return all, nil
}

func newSet(kind string, options []string) *set {
	s := &set{mask: -1}
	method, parts, _ := strings.Cut(kind, ":")
	s.parts = strings.Split(parts, ",")
	known := map[string][]string{"hash": {"ip", "net", "port", "iface"}, "bitmap": {"ip", "port"}, "list": {"set"}}[method]
	for _, part := range s.parts {
		if !slices.Contains(known, part) {
			s.odd = "sets of type " + kind + " are not followed"
		}
	}
	for i, o := range options {
		switch o {
		case "netmask":
			if i+1 < len(options) {
				n, err := strconv.Atoi(options[i+1])
				if s.mask = n; err != nil {
					s.odd = "netmask " + options[i+1]
				}
			}
		case "bitmask":
			s.odd = "sets with a bitmask are not followed"
		}
	}
	return s
}

func (s *set) add(key string, options []string) {
	e := element{nomatch: slices.Contains(options, "nomatch")}
	if len(s.parts) > 0 && s.parts[0] == "set" {
		if len(options) > 0 && slices.Contains([]string{"before", "after"}, options[0]) {
			s.odd = "a list in another order than that of its elements"
		}
		s.elements = append(s.elements, element{values: []value{{name: key}}})
		return
	}
	fields := strings.Split(key, ",")
	if len(fields) != len(s.parts) {
		s.odd = "element " + key
		return
	}
	for i, part := range s.parts {
		v, ok := parseValue(part, fields[i])
		if !ok {
			s.odd = "element " + key
			return
		}
		e.values = append(e.values, v)
	}
	s.elements = append(s.elements, e)
}

func parseValue(part, text string) (v value, ok bool) {
	switch part {
	case "ip", "net":
		return parseAddrs(text)
	case "iface":
		v.name = text
		return v, !strings.HasPrefix(text, "physdev:")
	}
	v.protocol = ir.TCP
	if name, rest, has := strings.Cut(text, ":"); has {
		text = rest
		if v.protocol, ok = ir.ParseProtocol(name); !ok {
			return value{low: 1}, true // of an unsupported protocol
		}
	} else {
		v.protocol = 0 // of a bitmap
	}
	v.low, v.high, ok = parsePorts(text, "-")
	return v, ok
}

// parsePorts parses a port or a range of ports.
func parsePorts(text, between string) (low, high uint16, ok bool) {
	a, b, ranged := strings.Cut(text, between)
	if !ranged {
		b = a
	}
	first, err1 := strconv.ParseUint(a, 10, 16)
	last, err2 := strconv.ParseUint(b, 10, 16)
	return uint16(first), uint16(last), err1 == nil && err2 == nil
}

// parseAddrs parses an address, a prefix or a range of addresses.
func parseAddrs(text string) (v value, ok bool) {
	if a, b, ranged := strings.Cut(text, "-"); ranged {
		first, err1 := netip.ParseAddr(a)
		last, err2 := netip.ParseAddr(b)
		return value{first: first, last: last}, err1 == nil && err2 == nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		return value{first: a, last: a, bits: a.BitLen()}, err == nil
	}
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return value{first: p.Addr(), last: end, bits: p.Bits()}, true
}

func (v value) contains(a netip.Addr) bool {
	return v.first.BitLen() == a.BitLen() && v.first.Compare(a) <= 0 && a.Compare(v.last) <= 0
}

// has reports whether a set contains the fields of a packet. Fields are "src" and
// "dst".
func (all *Sets) has(name string, fields []string, p *nfteval.Passing) (a answer, why string) {
	if all == nil || all.byName == nil {
		why = "the contents of ipset " + name + " are not known"
		if all != nil && all.failed != "" {
			why += ": " + all.failed
		}
		return unsure, why
	}
	s := all.byName[name]
	switch {
	case s == nil:
		return unsure, "ipset " + name + " does not exist"
	case s.odd != "":
		return unsure, "ipset " + name + ": " + s.odd
	case s.parts[0] == "set":
		return all.anyOf(s, fields, p)
	case len(fields) < len(s.parts):
		return no, ""
	}
	best, found, doubt := -1, no, ""
	for i := range s.elements {
		switch a, why := s.holds(&s.elements[i], fields, p); a {
		case unsure:
			doubt = "ipset " + name + ": " + why
		case yes:
			specific := 0
			for _, v := range s.elements[i].values {
				specific = specific<<9 + v.bits
			}
			if specific <= best {
				continue
			}
			best, found = specific, yes
			if s.elements[i].nomatch {
				found = no
			}
		}
	}
	if doubt != "" {
		return unsure, doubt
	}
	return found, ""
}

// anyOf reports whether one of the members of a list contains the fields.
func (all *Sets) anyOf(list *set, fields []string, p *nfteval.Passing) (a answer, why string) {
	for _, e := range list.elements {
		switch a, because := all.has(e.values[0].name, fields, p); a {
		case yes:
			return yes, ""
		case unsure:
			why = because
		}
	}
	if why != "" {
		return unsure, why
	}
	return no, ""
}

// holds reports whether an element matches the fields.
func (s *set) holds(e *element, fields []string, p *nfteval.Passing) (a answer, why string) {
	for i, v := range e.values {
		src := fields[i] == "src"
		switch s.parts[i] {
		case "ip", "net":
			addr := p.Dst()
			if src {
				addr = p.Src()
			}
			if s.mask >= 0 {
				if masked, err := addr.Prefix(s.mask); err == nil {
					addr = masked.Addr()
				}
			}
			if !v.contains(addr) {
				return no, ""
			}
		case "port":
			port := p.Port()
			if v.protocol != 0 && v.protocol != p.First().Protocol || v.protocol == 0 && v.low == 1 && v.high == 0 {
				return no, ""
			}
			if src {
				if port = p.First().SrcPort; port == 0 {
					why = anySourcePort
					continue
				}
			}
			if port < v.low || v.high < port {
				return no, ""
			}
		case "iface":
			name, known := p.Out()
			if src {
				name, known = p.In()
			}
			if !known {
				why = "its interface is not known"
			} else if name != v.name {
				return no, ""
			}
		}
	}
	if why != "" {
		return unsure, why
	}
	return yes, ""
}

const anySourcePort = "the source port of the packet is not known: give --from IP:PORT"

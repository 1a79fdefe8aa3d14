package xtables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
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
	ports       iptables.PortRange
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
			return value{ports: unsupported}, true
		}
	} else {
		v.protocol = 0 // of a bitmap
	}
	v.ports, ok = iptparse.Ports(text, "-")
	return v, ok
}

// unsupported are the ports of an unsupported protocol: none.
var unsupported = iptables.PortRange{First: 1}

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
	return value{first: p.Masked().Addr(), last: ir.LastOf(p), bits: p.Bits()}, true
}

func (v value) contains(a netip.Addr) bool {
	return v.first.BitLen() == a.BitLen() && v.first.Compare(a) <= 0 && a.Compare(v.last) <= 0
}

// has reports whether a set contains the fields of a packet. Fields are "src" and
// "dst".
func (all *Sets) has(name string, fields []string, p *nfteval.Passing) answer {
	if all == nil || all.byName == nil {
		why := "the contents of ipset " + name + " are not known"
		if all != nil && all.failed != "" {
			why += ": " + all.failed
		}
		return unsure(why)
	}
	s := all.byName[name]
	switch {
	case s == nil:
		return unsure("ipset " + name + " does not exist")
	case s.odd != "":
		return unsure("ipset " + name + ": " + s.odd)
	case s.parts[0] == "set":
		return all.anyOf(s, fields, p)
	case len(fields) < len(s.parts):
		return is(false)
	}
	best, found := -1, is(false)
	for i := range s.elements {
		e := &s.elements[i]
		if a := s.holds(e, fields, p); a.doubt != "" {
			found.doubt = "ipset " + name + ": " + a.doubt
		} else if specific := e.specific(); a.holds && specific > best {
			best, found.holds = specific, !e.nomatch
		}
	}
	return found
}

// specific orders elements: the most specific one of those that match decides.
func (e *element) specific() (n int) {
	for _, v := range e.values {
		n = n<<9 + v.bits
	}
	return n
}

// anyOf reports whether one of the members of a list contains the fields.
func (all *Sets) anyOf(list *set, fields []string, p *nfteval.Passing) (none answer) {
	for _, e := range list.elements {
		a := all.has(e.values[0].name, fields, p)
		if a.doubt == "" && a.holds {
			return a
		}
		none.doubt = cmp.Or(a.doubt, none.doubt)
	}
	return none
}

// holds reports whether an element matches the fields.
func (s *set) holds(e *element, fields []string, p *nfteval.Passing) answer {
	all := is(true)
	for i, v := range e.values {
		a := s.holdsPart(s.parts[i], v, fields[i] == "src", p)
		if a.doubt == "" && !a.holds {
			return a
		}
		all.doubt = cmp.Or(a.doubt, all.doubt)
	}
	return all
}

// holdsPart is holds for one part, of the packet's source or destination.
func (s *set) holdsPart(part string, v value, src bool, p *nfteval.Passing) answer {
	addr, port, interfaceOf := p.Dst(), p.Port(), (*nfteval.Passing).Out
	if src {
		addr, port, interfaceOf = p.Src(), p.First().SrcPort, (*nfteval.Passing).In
	}
	switch part {
	case "port":
		switch {
		case v.protocol != 0 && v.protocol != p.First().Protocol, v.ports == unsupported:
			return is(false)
		case src && port == 0:
			return unsure(anySourcePort)
		}
		return is(in(v.ports, port))
	case "iface":
		name, known := interfaceOf(p)
		if !known {
			return unsure("its interface is not known")
		}
		return is(name == v.name)
	}
	if masked, err := addr.Prefix(s.mask); err == nil {
		addr = masked.Addr()
	}
	return is(v.contains(addr))
}

const anySourcePort = "the source port of the packet is not known: give --from IP:PORT"

package compiler

import (
	"net/netip"
	"strconv"
	"strings"
)

// parseAddr reads an IP address as the API does: leading zeros in IPv4 octets
// are decimal (SNAP-20), IPv4-mapped IPv6 is IPv4, zones are refused.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(trimZeros(s))
	}
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// parsePrefix reads a CIDR, in the same manner, and masks it.
func parsePrefix(s string) (netip.Prefix, bool) {
	addr, length, ok := strings.Cut(strings.TrimSpace(s), "/")
	if !ok {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(addr + "/" + length)
	if err != nil {
		p, err = netip.ParsePrefix(trimZeros(addr) + "/" + length)
	}
	if err != nil {
		return netip.Prefix{}, false
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// trimZeros removes the leading zeros of the octets of dotted text.
func trimZeros(s string) string {
	head := strings.LastIndexByte(s, ':') + 1 // IPv6 may end in dotted text
	if !strings.Contains(s[head:], ".") {
		return s
	}
	octets := strings.Split(s[head:], ".")
	for i, o := range octets {
		for len(o) > 1 && o[0] == '0' {
			o = o[1:]
		}
		octets[i] = o
	}
	return s[:head] + strings.Join(octets, ".")
}

// parsePortRange reads portRange: "a-b", "a+n", "a", or "", "0" and "0-0" for
// whatever the kernel picks (inventory 1.4).
func parsePortRange(s string) (low, high uint16, ok bool) {
	if s = strings.TrimSpace(s); s == "" {
		return 0, 0, true
	}
	first, last, isRange := strings.Cut(s, "-")
	first, more, isOffset := strings.Cut(first, "+")
	a, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	if err != nil || (isRange && isOffset) {
		return 0, 0, false
	}
	b := a
	switch {
	case isRange:
		b, err = strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	case isOffset:
		var n uint64
		n, err = strconv.ParseUint(strings.TrimSpace(more), 10, 16)
		b = a + n
	}
	if err != nil || b < a || b > 65535 || (a == 0 && b > 0) {
		return 0, 0, false
	}
	return uint16(a), uint16(b), true
}

// number is a valid port number, or not.
func number(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// counted gives "1 thing" or "5 things".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// list gives the elements of a list field their names: ports[0], ports[1], …
// The first ones are made once, as they are needed for every object.
type list struct {
	before, after string
	made          []string
}

// newList prepares n names, "before0after", "before1after", …
func newList(before, after string, n int) list {
	l := list{before: before, after: after}
	for i := range n {
		l.made = append(l.made, l.name(i))
	}
	return l
}

func (l *list) name(i int) string { return l.before + strconv.Itoa(i) + l.after }

// at names element i.
func (l *list) at(i int) string {
	if i < len(l.made) {
		return l.made[i]
	}
	return l.name(i)
}

// Package inet reads IP addresses and CIDRs as kube-proxy does, which bears
// what Go's own parsers refuse today and clusters still hold: zeros before the
// octets of an IPv4 address, before the groups of an IPv6 one, and before the
// length of a CIDR. All of them are decimal or hexadecimal as without the zeros.
package inet

import (
	"net/netip"
	"strconv"
	"strings"
)

// ParseAddr reads an IP address. Zones are refused. An IPv4-mapped IPv6 address
// stays one: callers that hold it against others Unmap it.
func ParseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s) // the common case, without allocation
	if err != nil {
		a, err = netip.ParseAddr(trimZeros(s))
	}
	return a, err == nil && a.Zone() == ""
}

// ParsePrefix reads a CIDR, whose host bits may be set and are dropped. An
// IPv4-mapped one is that of IPv4.
func ParsePrefix(s string) (netip.Prefix, bool) {
	addr, length, slash := strings.Cut(s, "/")
	a, ok := ParseAddr(addr)
	bits, err := strconv.ParseUint(length, 10, 64)
	if !slash || !ok || err != nil || bits > uint64(a.BitLen()) {
		return netip.Prefix{}, false
	}
	p := netip.PrefixFrom(a, int(bits)).Masked()
	if p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, true
}

// trimZeros drops the zeros before each number of an address.
func trimZeros(s string) string {
	out := make([]byte, 0, len(s))
	first := true // of a number
	for i := range len(s) {
		c := s[i]
		if c == '0' && first && i+1 < len(s) && isDigit(s[i+1]) {
			continue
		}
		first = !isDigit(c)
		out = append(out, c)
	}
	return string(out)
}

// isDigit reports whether c can stand in a number of an address.
func isDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// Package inet parses IP addresses and CIDRs as kube-proxy does. Unlike Go's own
// parsers today, it accepts leading zeros, which existing clusters still contain:
// in octets of IPv4 addresses, in groups of IPv6 addresses, and in the length of
// a CIDR. Numbers with leading zeros remain decimal or hexadecimal.
package inet

import (
	"net/netip"
	"strconv"
	"strings"
)

// ParseAddr parses an IP address. It rejects zones. It does not convert
// IPv4-mapped IPv6 addresses; callers that compare addresses must Unmap them.
func ParseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s) // common case, without allocation
	if err != nil {
		a, err = netip.ParseAddr(trimZeros(s))
	}
	return a, err == nil && a.Zone() == ""
}

// IsAddr reports whether ParseAddr accepts a text.
func IsAddr(s string) bool {
	_, ok := ParseAddr(s)
	return ok
}

// IsPrefix reports whether ParsePrefix accepts a text.
func IsPrefix(s string) bool {
	_, ok := ParsePrefix(s)
	return ok
}

// ParseUnmapped is ParseAddr that converts an IPv4-mapped IPv6 address to IPv4.
func ParseUnmapped(s string) (netip.Addr, bool) {
	a, ok := ParseAddr(s)
	return a.Unmap(), ok
}

// ParsePrefix parses a CIDR and clears its host bits. It converts an IPv4-mapped
// IPv6 CIDR to IPv4.
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

// Unusable returns why an address cannot be an endpoint or external IP, or "".
// The API server rejects the same addresses (ValidateEndpointIP), so only files
// and objects of older API servers contain them.
func Unusable(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "unspecified"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsLinkLocalMulticast():
		return "a link-local multicast address"
	}
	return ""
}

// trimZeros removes leading zeros from each number of an address.
func trimZeros(s string) string {
	out := make([]byte, 0, len(s))
	first := true // at the start of a number
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

// isDigit reports whether c is a digit of an address, decimal or hexadecimal.
func isDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

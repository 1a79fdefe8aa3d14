package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// withPort appends the port to a bare IP address; anything else stays.
func withPort(addr string, port int) string {
	if _, ok := ParseAddr(addr); ok {
		return hostPort(addr, port)
	}
	return addr
}

func hostPort(host string, port int) string {
	if ip, ok := ParseAddr(host); ok && ip.Is6() {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

// ParseAddr parses an IP address and, like kube-proxy, bears zeros before the
// numbers of an IPv4 address: they are decimal. Zones are not allowed.
func ParseAddr(s string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(trimZeros(s))
	return ip, err == nil && ip.Zone() == ""
}

// ParsePrefix parses a CIDR as ParseAddr does an address. Host bits may be set
// and are dropped.
func ParsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(trimZeros(s))
	return p.Masked(), err == nil
}

// trimZeros drops the leading zeros of the decimal numbers in an IPv4 address,
// also at the end of an IPv6 one: "::ffff:010.0.0.1".
func trimZeros(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	head, tail := "", s
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		head, tail = s[:i+1], s[i+1:]
	}
	addr, bits, slash := strings.Cut(tail, "/")
	parts := strings.Split(addr, ".")
	for i, p := range parts {
		if t := strings.TrimLeft(p, "0"); t != "" {
			parts[i] = t
		} else if p != "" {
			parts[i] = "0"
		}
	}
	tail = strings.Join(parts, ".")
	if slash {
		tail += "/" + bits
	}
	return head + tail
}

// splitHostPort takes "IPv4:port" or "[IPv6]:port" apart.
func splitHostPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", "", false
	}
	host, port = s[:i], s[i+1:]
	if inner, found := strings.CutPrefix(host, "["); found {
		host, found = strings.CutSuffix(inner, "]")
		return host, port, found
	}
	return host, port, !strings.Contains(host, ":")
}

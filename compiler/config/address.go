package config

import (
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/inet"
)

// withPort appends the port to a bare IP address and returns any other text
// unchanged.
func withPort(addr string, port int) string {
	if _, ok := inet.ParseAddr(addr); ok {
		return hostPort(addr, port)
	}
	return addr
}

func hostPort(host string, port int) string {
	if ip, ok := inet.ParseAddr(host); ok && ip.Is6() {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

// splitHostPort splits "IPv4:port" or "[IPv6]:port".
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

//go:build !linux

package node

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/proxyc/proxyc/compiler"
)

// Interfaces returns the network interfaces, ordered by name.
func Interfaces() ([]compiler.Interface, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	out := make([]compiler.Interface, len(links))
	for i, l := range links {
		out[i].Name = l.Name
		addrs, err := l.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of interface %s: %w", l.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out[i].Addrs = append(out[i].Addrs, p)
			}
		}
	}
	return canonical(out), nil
}

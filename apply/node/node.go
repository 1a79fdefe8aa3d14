// Package node reads the properties of the machine that the compiler requires: its name and the
// addresses of its network interfaces.
package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
)

// Name returns the name of the node: the override or the host name, trimmed and in lower case
// (SNAP-70).
func Name(override string, hostname func() (string, error)) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = hostname(); err != nil {
			return "", fmt.Errorf("host name: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("host name: must not be empty; set hostnameOverride")
	}
	return name, nil
}

// canonical sorts interfaces and their addresses, and removes duplicates. It drops:
//
//   - the interface of mode ipvs. Node ports do not listen on it, and its addresses
//     must not count as the node's own while another mode replaces it.
//   - IPv6 link-local addresses. Each pod's interface has one, and node ports are not
//     served on them.
//   - interfaces without other addresses.
func canonical(in []compiler.Interface) []compiler.Interface {
	out := []compiler.Interface{}
	for _, i := range in {
		i.Addrs = slices.DeleteFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() })
		if i.Name == ir.IPVSDevice || len(i.Addrs) == 0 {
			continue
		}
		slices.SortFunc(i.Addrs, netip.Prefix.Compare)
		i.Addrs = slices.Compact(i.Addrs)
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b compiler.Interface) int { return strings.Compare(a.Name, b.Name) })
	return out
}

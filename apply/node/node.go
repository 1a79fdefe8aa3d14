// Package node reads what the compiler has to know of the machine it runs on:
// its name and the addresses of its network interfaces.
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

// Name returns the name of the node: the override or what hostname gives,
// trimmed and in lower case (SNAP-70).
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

// canonical puts interfaces and their addresses in order, without those of the
// proxy itself, which ipvs mode leaves: node ports do not answer on them, and
// they must not count as the node's own while another mode takes over. Each address occurs once an interface. Link-local addresses of
// IPv6, which each pod's interface brings along, are no addresses that anybody
// serves node ports at; an interface with nothing else says nothing.
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

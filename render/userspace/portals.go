package userspace

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// Portals returns the listeners of a process that serves a Service without rules,
// as on Windows: one at each of its addresses and ports. A node port has one at
// each of the node's addresses in nodePortAddresses (USR-20). The listeners of a
// service port have the same backends.
func (n *Node) Portals(s *ir.Service) []Listener {
	var all []Listener
	for i := range s.Frontends {
		f := &s.Frontends[i]
		for _, a := range n.portalAddrs(f) {
			l := n.listener(s, f.Port, f.Match.Port)
			l.Listen, l.Frontend = netip.AddrPortFrom(a, f.Match.Port), f
			all = append(all, l)
		}
	}
	return all
}

// portalAddrs returns the addresses at which a frontend is served.
func (n *Node) portalAddrs(f *ir.Frontend) []netip.Addr {
	on := &n.node.NodePorts
	switch {
	case !f.Match.IsNodePort():
		return []netip.Addr{f.Match.Addr}
	case on.All:
		return []netip.Addr{n.holdAddr(f)}
	}
	var addrs []netip.Addr
	seen := map[netip.Addr]bool{}
	add := func(a netip.Addr) {
		if !seen[a] {
			seen[a] = true
			addrs = append(addrs, a)
		}
	}
	for _, p := range on.Prefixes {
		if !p.Assigned {
			add(p.Prefix.Addr())
			continue
		}
		for _, a := range n.node.Addrs {
			if p.Prefix.Contains(a) {
				add(a)
			}
		}
	}
	return addrs
}

package userspace

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// Localhost returns the listeners of a process that serves the node ports of a
// Service at localhost over TCP, for a mode whose rules do not (KEP-6032). The
// backends are those for clients from outside: with externalTrafficPolicy Local,
// the node's own endpoints.
func Localhost(f ir.Family, s *ir.Service) []Listener {
	var all []Listener
	for i := range s.Frontends {
		if front := &s.Frontends[i]; front.Match.IsNodePort() && front.Match.Protocol == ir.TCP {
			l := Listener{Port: front.Port, Listen: netip.AddrPortFrom(f.Localhost(), front.Match.Port), Origin: front.Origin}
			if ir.RoutesAll(front.Routes) {
				l.forwardTo(&s.Pools[front.Routes[len(front.Routes)-1].Pool])
			}
			all = append(all, l)
		}
	}
	return all
}

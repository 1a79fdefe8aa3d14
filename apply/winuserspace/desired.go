package winuserspace

import (
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// desired is the desired state of a node: listeners, and the addresses that they require.
type desired struct {
	nodes     ir.PerFamily[*rules.Node]
	idle      time.Duration // timeout of silent UDP clients
	listeners map[userspace.Key]*rules.Listener
	users     map[netip.Addr]int // numbers of listeners that require an address
}

func newDesired(programs ir.Programs) *desired {
	w := &desired{listeners: map[userspace.Key]*rules.Listener{}, users: map[netip.Addr]int{}}
	for f, p := range ir.Present(programs) {
		*w.nodes.At(f) = rules.LowerNode(f, &p.Node)
		if u := p.Node.Userspace; u != nil {
			w.idle = u.UDPIdleTimeout
		}
		for i := range p.Services {
			w.set(f, nil, &p.Services[i])
		}
	}
	return w
}

// set replaces a Service, and returns the keys of its old and new listeners.
func (w *desired) set(f ir.Family, before, after *ir.Service) (keys []userspace.Key) {
	n := w.nodes.Of(f)
	for _, s := range []*ir.Service{before, after} {
		if n == nil || s == nil {
			continue
		}
		listeners := n.Portals(s)
		for i := range listeners {
			l := &listeners[i]
			k := userspace.KeyOf(f, l)
			keys = append(keys, k)
			if old := w.listeners[k]; old != nil {
				w.users[vip(old)]--
				delete(w.listeners, k)
			}
			if s == after {
				w.users[vip(l)]++
				w.listeners[k] = l
			}
		}
	}
	return keys
}

// vip returns the address that a listener requires; invalid if it uses the node's own addresses.
func vip(l *rules.Listener) netip.Addr { return l.Frontend.Match.Addr }

// state is the actual state of a node.
type state struct {
	addrs map[netip.Addr]Address
	added map[netip.Addr]bool // by proxyc, as listed in the file
}

func newState(addrs []Address, added map[netip.Addr]bool) *state {
	s := &state{addrs: make(map[netip.Addr]Address, len(addrs)), added: added}
	for _, a := range addrs {
		if before, twice := s.addrs[a.Addr]; !twice || !before.Service {
			s.addrs[a.Addr] = a
		}
	}
	return s
}

// has reports whether the node has an address that a listener requires, if it requires one.
func (s *state) has(a netip.Addr) bool {
	_, is := s.addrs[a]
	return is || !a.IsValid()
}

// ours reports whether proxyc added an address of the node.
func (s *state) ours(a netip.Addr) bool {
	return s.added[a] && s.addrs[a].Service && s.addrs[a].FullPrefix
}

package winuserspace

import (
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// desired is the desired state of a node: listeners, and the addresses that they require.
type desired struct {
	nodes     ir.PerFamily[*rules.Node]
	idle      time.Duration // timeout of silent UDP clients
	listeners ir.PerFamily[map[ir.Name][]rules.Listener]
	users     map[netip.Addr]map[ir.Name]bool // Services that use an address
}

func newDesired(programs ir.Programs) *desired {
	w := &desired{users: map[netip.Addr]map[ir.Name]bool{}}
	for f, p := range ir.Present(programs) {
		n := rules.LowerNode(f, &p.Node)
		*w.nodes.At(f) = n
		if u := p.Node.Userspace; u != nil {
			w.idle = u.UDPIdleTimeout
		}
		*w.listeners.At(f) = make(map[ir.Name][]rules.Listener, len(p.Services))
		for i := range p.Services {
			w.set(f, p.Services[i].Name, n.Portals(&p.Services[i]))
		}
	}
	return w
}

// set sets the listeners of a Service; none removes it.
func (w *desired) set(f ir.Family, name ir.Name, listeners []rules.Listener) {
	of := w.listeners.Of(f)
	for _, a := range vips(of[name]) {
		if delete(w.users[a], name); len(w.users[a]) == 0 {
			delete(w.users, a)
		}
	}
	if delete(of, name); len(listeners) == 0 {
		return
	}
	of[name] = listeners
	for _, a := range vips(listeners) {
		if w.users[a] == nil {
			w.users[a] = map[ir.Name]bool{}
		}
		w.users[a][name] = true
	}
}

// vip returns the address that a listener requires; invalid if it uses the node's own addresses.
func vip(l *rules.Listener) netip.Addr { return l.Frontend.Match.Addr }

func vips(listeners []rules.Listener) (all []netip.Addr) {
	for i := range listeners {
		if a := vip(&listeners[i]); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// state is the actual state of a node.
type state struct {
	addrs map[netip.Addr]Address
	added map[netip.Addr]bool
}

func newState(addrs []Address, noted map[netip.Addr]bool) *state {
	s := &state{addrs: make(map[netip.Addr]Address, len(addrs)), added: noted}
	for _, a := range addrs {
		if before, twice := s.addrs[a.Addr]; !twice || !before.Service {
			s.addrs[a.Addr] = a
		}
	}
	return s
}

func (s *state) has(a netip.Addr) bool {
	_, is := s.addrs[a]
	return is
}

// ours reports whether proxyc added an address of the node.
func (s *state) ours(a netip.Addr) bool {
	return s.added[a] && s.addrs[a].Service && s.addrs[a].FullPrefix
}

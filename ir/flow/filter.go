package flow

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
)

// anywhere selects all destinations.
func anywhere(prove.Addrs) bool { return true }

// touched returns a filter for destinations whose packets may have another
// outcome: those with a frontend of a changed Service, or with backends at an
// address of such a Service. If the nodes differ, these are all destinations.
func touched(a, b *ir.Program, changes []ir.Change) func(prove.Addrs) bool {
	all, caps := !reflect.DeepEqual(a.Node, b.Node), a.Node.Mode.Capabilities()
	at := map[netip.Addr]bool{}
	ports := false
	add := func(s *ir.Service) {
		for i := range s.Frontends {
			at[s.Frontends[i].Match.Addr] = true
			ports = ports || s.Frontends[i].Match.IsNodePort()
		}
	}
	for _, c := range changes {
		for _, s := range [...]*ir.Service{c.Old, c.New} {
			if s != nil {
				all = all || s.Health != nil && caps.Has(ir.CarriesVIPs) // a health check answers at all addresses of Services
				add(s)
			}
		}
	}
	if !all && (caps.Has(ir.FiltersTranslated) || caps.Has(ir.CarriesVIPs)) {
		for _, s := range leading(a, at, ports, a, b) {
			add(s)
		}
	}
	return func(d prove.Addrs) bool {
		return all || at[d.First] || ports && answers(a, b, d.First)
	}
}

// leading returns the Services of some Programs with a backend at one of some addresses, or at one of
// the node's with nodePorts.
func leading(node *ir.Program, at map[netip.Addr]bool, nodePorts bool, in ...*ir.Program) (all []*ir.Service) {
	touched := func(b ir.Backend) bool {
		addr := b.AddrPort.Addr()
		return at[addr] || nodePorts && node.Node.HasAddr(addr)
	}
	for _, p := range in {
		for i := range p.Services {
			if s := &p.Services[i]; slices.ContainsFunc(s.Pools, func(p ir.Pool) bool { return slices.ContainsFunc(p.Backends, touched) }) {
				all = append(all, s)
			}
		}
	}
	return all
}

// ofServices returns a filter for destinations at which the selected Services
// have or may have frontends. If destinations without a Service are selected,
// too, these are all.
func ofServices(a, b *ir.Program, of func(ir.Name) bool) func(prove.Addrs) bool {
	if of(ir.Name{}) {
		return anywhere
	}
	at := map[netip.Addr]bool{}
	for _, p := range [...]*ir.Program{a, b} {
		for s, f := range p.Frontends() {
			if of(s.Name) {
				at[f.Match.Addr] = true
			}
		}
	}
	return func(d prove.Addrs) bool { return at[d.First] || at[netip.Addr{}] && answers(a, b, d.First) }
}

// answers reports whether an address belongs to the node, or node ports answer at
// it, on either side.
func answers(a, b *ir.Program, addr netip.Addr) bool {
	return slices.ContainsFunc([]*ir.Program{a, b}, func(p *ir.Program) bool {
		return p.Node.HasAddr(addr) || p.Node.NodePorts.Has(addr, false)
	})
}

func both(f, g func(prove.Addrs) bool) func(prove.Addrs) bool {
	return func(d prove.Addrs) bool { return f(d) && g(d) }
}

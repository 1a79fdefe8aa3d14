// Package conntrack finds and deletes the kernel's connection tracking entries
// that hold UDP clients to an endpoint that is gone. TCP and SCTP connections
// end by themselves (DMN-32); a UDP client that keeps its port would otherwise
// talk to the old address for as long as it talks.
//
// Which entries are stale is a pure decision; only entries in zone 0, where
// the node's own rules work, and only such that went to a frontend of proxyc
// are ever touched.
package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// Entry is one tracked flow.
type Entry struct {
	Protocol ir.Protocol
	// Client and To are the source and destination of the client's packets,
	// before any translation.
	Client, To netip.AddrPort
	// From is where answers come from: the backend, or To where the
	// destination was not translated.
	From netip.AddrPort
	Zone uint16
	ID   uint32 // the kernel's; tells the entry from a later one of the same flow
}

// String gives "192.0.2.1:5000 -> 10.96.0.10:53 (10.244.1.5:53)/udp".
func (e Entry) String() string {
	return fmt.Sprintf("%s -> %s (%s)/%s", e.Client, e.To, e.From, e.Protocol)
}

// Stale is an entry that has to go.
type Stale struct {
	Entry    Entry
	Frontend ir.Match
	Service  ir.Name // zero where the frontend is gone
	Why      string
}

// Find gives the stale ones of the entries, in their order (DMN-30). The
// programs are those in force now; gone are the frontends that were in force
// before and are not any longer. An entry to a frontend is stale when
//
//   - endpoints of its port serve, and answers come from none of them: the
//     endpoint went, or the entry is older than the Service and was never
//     translated;
//   - none serves, or the frontend is gone, and the entry was translated.
//     kube-proxy keeps these (kubernetes#139628), so that the client goes on
//     sending into the void, also when endpoints are back.
//
// In userspace mode the proxy itself holds the flows: none is stale.
func Find(entries []Entry, programs ir.Programs, gone []ir.Match) []Stale {
	var byFamily ir.PerFamily[*frontends]
	for f, p := range ir.Present(programs) {
		if p.Node.Mode != ir.ModeUserspace {
			*byFamily.At(f) = newFrontends(p, gone)
		}
	}
	var out []Stale
	for _, e := range entries {
		f := byFamily.Of(ir.FamilyOf(e.To.Addr()))
		if f == nil || e.Protocol != ir.UDP || e.Zone != 0 {
			continue
		}
		if s, ok := f.judge(e); ok {
			out = append(out, s)
		}
	}
	return out
}

// Concern tells whether any entry could be stale: whether there is a UDP
// frontend, or was one. If not, there is no need to read the table.
func Concern(programs ir.Programs, gone []ir.Match) bool {
	for _, m := range gone {
		if m.Protocol == ir.UDP {
			return true
		}
	}
	for _, p := range ir.Present(programs) {
		for i := range p.Services {
			for j := range p.Services[i].Frontends {
				if p.Services[i].Frontends[j].Match.Protocol == ir.UDP {
					return true
				}
			}
		}
	}
	return false
}

// frontends are the UDP frontends of one family by what they match.
type frontends struct {
	node  *ir.Node
	alive map[ir.Match]frontend
	gone  map[ir.Match]bool
}

// frontend is what an entry is held against.
type frontend struct {
	service  ir.Name
	backends map[netip.AddrPort]bool
}

func newFrontends(p *ir.Program, gone []ir.Match) *frontends {
	out := &frontends{node: &p.Node, alive: map[ir.Match]frontend{}, gone: map[ir.Match]bool{}}
	for i := range p.Services {
		s := &p.Services[i]
		for j := range s.Frontends {
			if f := &s.Frontends[j]; f.Match.Protocol == ir.UDP {
				out.alive[f.Match] = frontend{service: s.Name, backends: serving(s, f.Port)}
			}
		}
	}
	for _, m := range gone {
		if m.Protocol == ir.UDP {
			out.gone[m] = true
		}
	}
	return out
}

// serving gives the endpoints of a service port that serve. Whether it would
// be sent there again, by policy, hints or termination, is not asked of a client
// that is there: a TCP connection would stay as well.
func serving(s *ir.Service, port ir.ServicePort) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for i := range s.Pools {
		if s.Pools[i].Port == port {
			add(out, s.Pools[i].Backends)
		}
	}
	for i := range s.Kept {
		if s.Kept[i].Port == port {
			add(out, s.Kept[i].Backends)
		}
	}
	return out
}

func add(set map[netip.AddrPort]bool, backends []ir.Backend) {
	for _, b := range backends {
		set[b.AddrPort] = true
	}
}

func (f *frontends) judge(e Entry) (Stale, bool) {
	translated := e.From != e.To
	m, alive, ok := f.of(e.To)
	s := Stale{Entry: e, Frontend: m, Service: alive.service}
	switch {
	case !ok:
		return Stale{}, false
	case alive.backends == nil:
		s.Why = "the Service, or its port, is gone"
		return s, translated
	case len(alive.backends) == 0:
		s.Why = "the Service has no endpoint left"
		return s, translated
	case !translated:
		s.Why = "older than the Service's endpoints: it was never translated"
		return s, true
	}
	s.Why = e.From.String() + " is no endpoint of the Service"
	return s, !alive.backends[e.From]
}

// of finds the frontend that takes, or took, packets to an address: exact
// addresses before node ports. The backends of one that is gone are nil.
func (f *frontends) of(to netip.AddrPort) (m ir.Match, alive frontend, ok bool) {
	exact := ir.Match{Addr: to.Addr(), Protocol: ir.UDP, Port: to.Port()}
	node := ir.Match{Protocol: ir.UDP, Port: to.Port()}
	own := f.node.HasAddr(to.Addr())
	if alive, ok = f.alive[exact]; ok {
		return exact, alive, true
	}
	if f.node.NodePorts.Has(to.Addr(), own) {
		if alive, ok = f.alive[node]; ok {
			return node, alive, true
		}
	}
	if f.gone[exact] {
		return exact, frontend{}, true
	}
	// What is gone may have answered on other addresses of the node than now.
	_, still := f.alive[node]
	return node, frontend{}, own && !still && f.gone[node]
}

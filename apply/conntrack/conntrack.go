// Package conntrack finds and deletes the kernel's connection tracking entries
// that hold UDP clients to an endpoint that is gone, or to one that they may no longer reach. TCP and SCTP connections
// end by themselves (DMN-32); a UDP client that keeps its port would otherwise
// talk to the old address for as long as it talks.
//
// Which entries are stale is a pure decision; only entries in zone 0, where
// the node's own rules work, and only such that went to a frontend of proxyc
// are ever touched.
package conntrack

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

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
	// Unanswered: nothing came back. To rules each packet of such a flow is the
	// first of a connection (ctstate NEW).
	Unanswered bool
	Zone       uint16
	ID         uint32 // the kernel's; tells the entry from a later one of the same flow
}

// String returns "192.0.2.1:5000 -> 10.96.0.10:53 (10.244.1.5:53)/udp".
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

// Compare orders them by where the client sent, and by client.
func (s Stale) Compare(o Stale) int {
	a, b := s.Entry, o.Entry
	return cmp.Or(a.To.Compare(b.To), a.Client.Compare(b.Client), a.From.Compare(b.From), cmp.Compare(a.ID, b.ID))
}

// Selector tells stale entries of one family from others, by what is in force: the
// UDP frontends of a Program's Services, and those that were in force before
// and are gone (DMN-30). An entry to a frontend is stale when
//
//   - endpoints of its port serve, and answers come from none of them: the
//     endpoint went, or the entry is older than the Service and was never
//     translated;
//   - none serves, or the frontend is gone, and the entry was translated.
//     kube-proxy keeps these (kubernetes#139628), so that the client goes on
//     sending into the void, also when endpoints are back;
//   - nothing was ever answered, and the frontend does not admit its client any
//     longer (PKT-10). In mode nftables such a flow ends by rules, of kube-proxy's as
//     of ours: each of its packets is a first one to the filter. In mode iptables
//     what is dropped is told by its address before translation, which only the
//     packet that makes the entry has.
//
// In userspace mode the proxy itself holds the flows: none is stale.
type Selector struct {
	family  ir.Family
	node    *ir.Node
	current map[ir.Match]frontend
	removed map[ir.Match]bool
	// ports are those of all frontends: most entries of a node lead to none, and
	// this tells so of each with one look.
	ports map[uint16]bool
}

// frontend is what an entry is held against.
type frontend struct {
	service  ir.Name
	backends map[netip.AddrPort]bool
	ranges   []ir.SourceRange // of Frontend.SourceRanges
}

// admits reports whether the ranges, if there are any, hold a client.
func (f *frontend) admits(client netip.Addr) bool {
	return len(f.ranges) == 0 || slices.ContainsFunc(f.ranges, func(r ir.SourceRange) bool { return r.Prefix.Contains(client) })
}

// NewSelector returns the Selector of a Program's family; a frontend that was removed and
// of the other one is no matter.
func NewSelector(p *ir.Program, removed []ir.Match) *Selector {
	sel := &Selector{family: p.Family, node: &p.Node, current: map[ir.Match]frontend{}, removed: map[ir.Match]bool{}, ports: map[uint16]bool{}}
	if p.Node.Mode == ir.ModeUserspace {
		return sel
	}
	for i := range p.Services {
		s := &p.Services[i]
		for k := range s.Frontends {
			if f := &s.Frontends[k]; f.Match.Protocol == ir.UDP {
				sel.current[f.Match] = frontend{service: s.Name, backends: serving(s, f.Port), ranges: f.SourceRanges}
				sel.ports[f.Match.Port] = true
			}
		}
	}
	for _, m := range removed {
		if m.Protocol == ir.UDP && (m.IsNodePort() || ir.FamilyOf(m.Addr) == p.Family) {
			sel.removed[m] = true
			sel.ports[m.Port] = true
		}
	}
	return sel
}

// Idle reports whether no entry could be stale: there is no UDP frontend, and
// was none. Then there is no need to read the table.
func (sel *Selector) Idle() bool { return len(sel.ports) == 0 }

// Stale reports whether an entry is stale, and why.
func (sel *Selector) Stale(e Entry) (Stale, bool) {
	if e.Protocol != ir.UDP || e.Zone != 0 || !sel.ports[e.To.Port()] {
		return Stale{}, false
	}
	translated := e.From != e.To
	m, current, ok := sel.of(e.To)
	s := Stale{Entry: e, Frontend: m, Service: current.service}
	switch {
	case !ok:
		return Stale{}, false
	case current.backends == nil:
		s.Why = "the Service, or its port, is gone"
		return s, translated
	case len(current.backends) == 0:
		s.Why = "the Service has no endpoint left"
		return s, translated
	case !translated:
		s.Why = "older than the Service's endpoints: it was never translated"
		return s, true
	case !current.backends[e.From]:
		s.Why = e.From.String() + " is no endpoint of the Service"
		return s, true
	case e.Unanswered && !current.admits(e.Client.Addr()):
		s.Why = "spec.loadBalancerSourceRanges does not admit " + e.Client.Addr().String()
		return s, true
	}
	return Stale{}, false
}

// serving returns the endpoints of a service port that serve. Whether it would
// be sent there again, by policy, hints or termination, is not asked of a client
// that is there: a TCP connection would stay as well.
func serving(s *ir.Service, port ir.ServicePort) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for i := range s.Pools {
		if s.Pools[i].Port == port {
			add(out, s.Pools[i].Backends)
		}
	}
	for i := range s.Draining {
		if s.Draining[i].Port == port {
			add(out, s.Draining[i].Backends)
		}
	}
	return out
}

func add(set map[netip.AddrPort]bool, backends []ir.Backend) {
	for _, b := range backends {
		set[b.AddrPort] = true
	}
}

// of finds the frontend that takes, or took, packets to an address: exact
// addresses before node ports. The backends of one that is gone are nil.
func (sel *Selector) of(to netip.AddrPort) (m ir.Match, current frontend, ok bool) {
	exact := ir.Match{Addr: to.Addr(), Protocol: ir.UDP, Port: to.Port()}
	node := ir.Match{Protocol: ir.UDP, Port: to.Port()}
	own := sel.node.HasAddr(to.Addr())
	if current, ok = sel.current[exact]; ok {
		return exact, current, true
	}
	if sel.node.NodePorts.Has(to.Addr(), own) {
		if current, ok = sel.current[node]; ok {
			return node, current, true
		}
	}
	if sel.removed[exact] {
		return exact, frontend{}, true
	}
	// What is gone may have answered on other addresses of the node than now.
	_, still := sel.current[node]
	return node, frontend{}, own && !still && sel.removed[node]
}

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
//     kube-proxy keeps those of node ports and of Services that are gone, and before
//     release 1.37.2 all of them (kubernetes#139628). Then the client goes on sending
//     into the void, also when endpoints are back;
//   - nothing was ever answered, and the frontend does not admit its client any
//     longer (PKT-10). In mode nftables such a flow ends by rules, of kube-proxy's as
//     of ours: each of its packets is a first one to the filter. In mode iptables
//     what is dropped is told by its address before translation, which only the
//     packet that makes the entry has.
//
// In userspace mode the proxy itself holds the flows: none is stale.
//
// A Selector may look at the flows of some frontends alone. It judges each by all
// frontends that are in force, as one that looks at all does: the address of a node
// port can be the external address of another Service.
type Selector struct {
	family  ir.Family
	inForce *frontends
	look    map[ir.Match]bool // at the flows to these
	removed map[ir.Match]bool
	// ports are those of look: most entries of a node lead to none, and this tells so
	// of each with one look.
	ports map[uint16]bool
}

// admits reports whether the ranges, if there are any, hold a client.
func (f *frontend) admits(client netip.Addr) bool {
	return len(f.ranges) == 0 || slices.ContainsFunc(f.ranges, func(r ir.SourceRange) bool { return r.Prefix.Contains(client) })
}

// NewSelector returns the Selector of a Program's family; a frontend that was removed and
// of the other one is no matter.
func NewSelector(p *ir.Program, removed []ir.Match) *Selector {
	f := &frontends{}
	all := &Work{Programs: ir.PerFamily[*ir.Program]{}, All: true, Removed: removed}
	*all.Programs.At(p.Family) = p
	return f.take(p.Family, all).selector(p.Family, f)
}

// Idle reports whether no entry could be stale: there is no UDP frontend, and
// was none. Then there is no need to read the table.
func (sel *Selector) Idle() bool { return len(sel.look) == 0 }

// Stale reports whether an entry is stale, and why.
func (sel *Selector) Stale(e Entry) (Stale, bool) {
	if e.Protocol != ir.UDP || e.Zone != 0 || !sel.ports[e.To.Port()] {
		return Stale{}, false
	}
	exact := ir.Match{Addr: e.To.Addr(), Protocol: ir.UDP, Port: e.To.Port()}
	nodePort := ir.Match{Protocol: ir.UDP, Port: e.To.Port()}
	if !sel.look[exact] && !sel.look[nodePort] {
		return Stale{}, false
	}
	m, current, ok := sel.of(exact, nodePort)
	s := Stale{Entry: e, Frontend: m}
	if current != nil {
		s.Service = current.service
	}
	translated := e.From != e.To
	switch {
	case !ok:
		return Stale{}, false
	case current == nil:
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
//
// Endpoints that are ready but not serving count as well: the EndpointSlice
// controller writes that of pods that are not ready and whose Service has
// publishNotReadyAddresses. The rules send new clients to them. kube-proxy does so,
// too, and yet deletes the flows of these clients whenever any UDP Service changes
// (up to 1.37): a client that keeps its port, as QUIC does, would lose its
// connection, for which no endpoint changed.
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
// addresses before node ports. One that is gone is nil.
func (sel *Selector) of(exact, nodePort ir.Match) (m ir.Match, current *frontend, ok bool) {
	f := sel.inForce
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.node.HasAddr(exact.Addr)
	if current = f.matches[exact]; current != nil {
		return exact, current, true
	}
	of := f.matches[nodePort]
	if of != nil && f.node.NodePorts.Has(exact.Addr, own) {
		return nodePort, of, true
	}
	if sel.removed[exact] {
		return exact, nil, true
	}
	// What is gone may have answered on other addresses of the node than now.
	return nodePort, nil, own && of == nil && sel.removed[nodePort]
}

// Package conntrack deletes connection tracking entries that send UDP clients to an endpoint that
// is gone, or that they may no longer reach. A UDP client that keeps its port would otherwise use the
// old address for as long as it sends. TCP and SCTP connections end by themselves (DMN-32). Their
// entries are deleted only if the connection began before the rules: see Selector.
//
// The selection of stale entries is a pure function. Only entries in zone 0, which the node's own
// rules use, and only entries for a frontend of proxyc are deleted.
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
	Protocol ir.Protocol `json:"-"`
	// Client and To are the source and destination of the client's packets, before translation.
	Client netip.AddrPort `json:"client"`
	To     netip.AddrPort `json:"to"`
	// From is the source of replies: the backend, or To if the destination was not translated.
	From netip.AddrPort `json:"endpoint"`
	// Unanswered reports that no reply was seen. Rules then match each packet as the first of a
	// connection (ctstate NEW).
	Unanswered bool   `json:"unanswered,omitzero"`
	State      string `json:"state,omitzero"` // of TCP and SCTP, as conntrack -L prints it; OFFLOAD in the fast path
	Zone       uint16 `json:"-"`
	ID         uint32 `json:"-"` // kernel ID; distinguishes the entry from a later one of the same flow
}

// String returns the entry as "192.0.2.1:5000 -> 10.96.0.10:53 (10.244.1.5:53)/udp".
func (e Entry) String() string {
	return fmt.Sprintf("%s -> %s (%s)/%s", e.Client, e.To, e.From, e.Protocol)
}

// Stale is an entry to delete.
type Stale struct {
	Entry    Entry
	Frontend ir.Match
	Service  ir.Name // zero if the frontend is gone
	Why      string
}

// Compare orders by destination, then by client.
func (s Stale) Compare(o Stale) int {
	a, b := s.Entry, o.Entry
	return cmp.Or(a.To.Compare(b.To), a.Client.Compare(b.Client), a.From.Compare(b.From), cmp.Compare(a.ID, b.ID))
}

// Selector decides which entries of one family are stale. It uses the frontends in force, and
// those that were removed (DMN-30, stale UDP entries are deleted after a sync). An entry for a
// UDP frontend is stale in three cases:
//
//   - Its port has serving endpoints, and replies come from none of them. The endpoint
//     is gone, or the entry is older than the Service and was never translated.
//   - The frontend is gone, or its port has no serving endpoint, and the entry was
//     translated; in the second case also, in mode nftables, if it was never answered.
//     kube-proxy keeps such entries of node ports and of removed Services, and before
//     release 1.37.2 all of them (kubernetes#139628). The client then sends to a dead
//     address even after endpoints return.
//   - No reply was ever seen, and spec.loadBalancerSourceRanges no longer admits the
//     client (PKT-10). In mode nftables, kube-proxy's filter sees each packet of such a
//     flow as a first one, and drops it. In mode iptables its filter matches the address
//     before translation, which only the first packet has.
//
// In mode nftables, an entry for a TCP or SCTP frontend is stale if it is neither translated nor
// answered: it is older than the rules, which see only the first packet of a connection. Without
// the entry, they translate or refuse the next try of the client.
//
// In mode userspace the proxy owns the flows, and no entry is stale.
//
// A Selector may be limited to the flows of some frontends. It still judges each flow by all
// frontends in force, like an unlimited one: the address of a node port can be the external address
// of another Service.
type Selector struct {
	family  ir.Family
	inForce *frontends
	checked map[ir.Match]bool // frontends whose flows are checked
	removed map[ir.Match]bool
	// ports are those of look. Most entries of a node match none, which one lookup detects.
	ports map[uint16]bool
}

// admits reports whether a client is within the source ranges, or there are none.
func (f *frontend) admits(client netip.Addr) bool {
	return len(f.ranges) == 0 || slices.ContainsFunc(f.ranges, func(r ir.SourceRange) bool { return r.Prefix.Contains(client) })
}

// NewSelector returns the Selector of a Program. Removed frontends of the other family are ignored.
func NewSelector(p *ir.Program, removed []ir.Match) *Selector {
	f := &frontends{}
	return f.update(p.Family, &Work{Programs: ir.NewPrograms(p), All: true, Removed: removed}).selector(p.Family, f)
}

// NewReview returns a Selector for reports, which judges the entries of all protocols as those of UDP. Draining
// of the Program must have the endpoints of all protocols.
func NewReview(p *ir.Program) *Selector {
	f := &frontends{every: true}
	return f.update(p.Family, &Work{Programs: ir.NewPrograms(p), All: true}).selector(p.Family, f)
}

// Idle reports whether no entry can be stale, since there are no frontends to check. The table
// then need not be read.
func (sel *Selector) Idle() bool { return len(sel.checked) == 0 }

// neverTranslated is the reason for an entry whose packets were sent to the frontend itself.
const neverTranslated = "never translated: it is older than the Service's endpoints, or rules are missing"

// Stale reports whether an entry is stale, and the reason. The result has the frontend in force also if it is
// not.
func (sel *Selector) Stale(e Entry) (Stale, bool) {
	if e.Zone != 0 || !sel.ports[e.To.Port()] {
		return Stale{}, false
	}
	exact := ir.Match{Addr: e.To.Addr(), Protocol: e.Protocol, Port: e.To.Port()}
	nodePort := ir.Match{Protocol: e.Protocol, Port: e.To.Port()}
	if !sel.checked[exact] && !sel.checked[nodePort] {
		return Stale{}, false
	}
	m, current, ok := sel.frontendOf(exact, nodePort)
	s := Stale{Entry: e, Frontend: m}
	if current != nil {
		s.Service = current.service
	}
	translated := e.From != e.To
	if e.Protocol != ir.UDP && !sel.inForce.every {
		s.Why = neverTranslated
		return s, current != nil && e.Unanswered && !translated && !current.backends[e.From]
	}
	switch {
	case !ok:
		return Stale{}, false
	case current == nil:
		s.Why = "the Service, or its port, is gone"
		return s, translated
	case len(current.backends) == 0:
		s.Why = "the Service has no endpoint left"
		return s, translated || current.first && e.Unanswered // rules then refuse the next packet
	case !current.backends[e.From]: // an endpoint with hostNetwork may have the address of the frontend
		s.Why = "the backend is no endpoint of the Service"
		if !translated {
			s.Why = neverTranslated
		}
		return s, true
	case e.Unanswered && !current.admits(e.Client.Addr()):
		s.Why = "spec.loadBalancerSourceRanges does not admit the client"
		return s, true
	}
	return s, false
}

// serving returns the serving endpoints of a service port. Traffic policy, topology hints and
// termination do not matter for an existing client: a TCP connection would remain, too.
//
// Endpoints that are ready but not serving are included. The EndpointSlice controller writes this
// for unready pods of a Service with publishNotReadyAddresses, and the rules send new clients to
// them. kube-proxy sends clients to them, too, but deletes their flows whenever any UDP Service
// changes (up to 1.37). A client that keeps its port, such as a QUIC client, would then lose its
// connection although no endpoint changed.
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

// frontendOf returns the frontend for an address, exact addresses before node ports. current is nil
// if it was removed.
func (sel *Selector) frontendOf(exact, nodePort ir.Match) (m ir.Match, current *frontend, ok bool) {
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
	// A removed node port may have had other addresses of the node.
	return nodePort, nil, own && of == nil && sel.removed[nodePort]
}

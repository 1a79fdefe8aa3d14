package flow

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Effect is what a change means to the operator of a cluster.
type Effect uint8

// All effects, the most dangerous first.
const (
	Opens         Effect = iota // clients are served that were not, or by another Service
	Lost                        // clients are no longer served, or the destination is removed
	ClientAddress               // backends receive another client address
	Spread                      // connections are distributed in another way
	Other                       // anything else, such as dropped instead of rejected
	Backends                    // only endpoints of the same workloads are added or removed
)

// Effects returns all effects, the most dangerous first.
func Effects() []Effect { return []Effect{Opens, Lost, ClientAddress, Spread, Other, Backends} }

// String returns the effect's word in flags and output.
func (e Effect) String() string {
	return [...]string{"opens", "lost", "client-address", "spread", "other", "backends"}[e]
}

// MarshalText returns the same as String.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// Meaning describes the effect.
func (e Effect) Meaning() string {
	return [...]string{
		"clients can reach what they could not reach before",
		"clients are no longer served, or the destination is removed",
		"backends receive another client address",
		"connections are distributed in another way",
		"other results, health checks and settings",
		"only endpoints are added or removed",
	}[e]
}

// Dangerous reports whether clients of a frontend that both sides have are newly served or lost, or clients
// outside of the cluster are. What a new or removed Service does inside of the cluster is not dangerous.
func (s *Service) Dangerous() bool {
	if s.Effect > Lost {
		return false
	}
	return len(s.Notes) > 0 || slices.ContainsFunc(s.Flows, func(f Flow) bool {
		outside := slices.ContainsFunc(f.From, func(c Clients) bool { return c.Kind == Outside })
		external := slices.ContainsFunc(f.To, func(d Destination) bool { return d.Hijacked || d.Kind != ir.ClusterIP.String() })
		if s.Effect == Opens {
			return outside && external || f.Change.Before != sim.NotOurs
		}
		return outside && external || s.Action == Changed
	})
}

// claim is what a side has at the destination of a class of packets.
type claim struct {
	owner  ir.Name // the Service with a frontend there; zero for none
	admits bool    // the frontend has no source ranges, or they contain the client
	paused string  // the workload whose next pod the frontend serves; "" for none
	selection
}

// selection is how the endpoints that receive packets are selected: by policy, hints or readiness. It
// is set only if both sides serve the packets with different endpoints.
type selection struct {
	policy ir.Policy
	reason string // of each endpoint
}

func selectionOf(p *ir.Pool) selection { return selection{p.Policy, p.Backends[0].Origin.Reason} }

// effectOf returns the effect of a change for one class of packets. a and b are the outcomes, was
// and is are the claims before and after.
func effectOf(c *Change, a, b *sim.Outcome, was, is claim) Effect {
	const precision = 3 // of shares in the output of tools, in millionths
	before, after := served(a), served(b)
	none := ir.Name{}
	switch {
	case before == 0 && (after > 0 || is.admits && (was.owner == is.owner && !was.admits || is.paused != "")), // the endpoints may become ready later
		after > 0 && was.owner != is.owner && len(c.Added) > 0, len(c.Targets) > 0:
		return Opens
	case before > after+precision, was.owner != none && is.owner == none:
		return Lost
	case before == 0:
		return Other
	case c.Kept[0] != c.Kept[1] && c.Kept[0] != "" && c.Kept[1] != "":
		return ClientAddress
	case after > before+precision, len(c.Added)+len(c.Removed) == 0, c.Affinity[0] != c.Affinity[1],
		was.selection != is.selection, (a.Choice == "") != (b.Choice == ""):
		return Spread
	}
	return Backends
}

// served returns the share of connections that reach a backend, in millionths.
func served(o *sim.Outcome) (share uint32) {
	rest := uint32(1e6)
	for _, f := range o.Fallback {
		rest -= min(rest, f.Share)
		if f.Fate == sim.Accepted {
			share += f.Share
		}
	}
	if o.Fate == sim.Accepted {
		share += rest
	}
	return share
}

// claim returns the side's claim to packets at a frontend, which may be nil.
func (s *side) claim(f *ir.Frontend, pkt sim.Packet, moved bool) (c claim) {
	if f == nil {
		return claim{admits: true}
	}
	c = claim{owner: f.Port.Service, admits: len(f.SourceRanges) == 0 ||
		slices.ContainsFunc(f.SourceRanges, func(r ir.SourceRange) bool { return r.Prefix.Contains(pkt.Src) })}
	if !moved || len(f.Routes) == 0 {
		return c
	}
	pools := s.services[c.owner].Pools
	c.selection = selectionOf(&pools[f.Routes[0].Pool])
	if allOf(f.Routes, func(r ir.Route) bool { return selectionOf(&pools[r.Pool]) == c.selection }) {
		return c
	}
	if p := s.Pool(pkt); p != nil {
		c.selection = selectionOf(p)
	}
	return c
}

// endpoints returns the addresses behind a frontend with their workloads; nil if these are unknown.
func (n *network) endpoints(side int, f *ir.Frontend) map[netip.Addr][]string {
	if f == nil || n.workloads[side] == nil {
		return nil
	}
	return n.workloads[side].Endpoints(f.Port.Service)
}

// paused returns the workload of Workloads.Paused after the change.
func (n *network) paused(service ir.Name) string {
	if n.workloads[1] == nil {
		return ""
	}
	return n.workloads[1].Paused(service)
}

// newTargets returns the workloads and ports of added backends that no backend before has. Addresses
// without a workload are alike. renumbered reports whether all of some workloads only moved their port.
func newTargets(before, after map[netip.Addr][]string, ports map[uint16]bool, added []netip.AddrPort, renumbered func([]string, uint16) bool) (out []string) {
	const none = "endpoints of no known workload"
	known := map[string]bool{} // with and without kinds
	for _, of := range before {
		known[none] = known[none] || len(of) == 0
		for _, w := range of {
			_, name := kindOf(w)
			known[w], known["any "+name] = true, true
		}
	}
	add := func(is bool, what string) {
		if !is && !slices.Contains(out, what) {
			out = append(out, what)
		}
	}
	for _, at := range added {
		of, has := after[at.Addr()]
		add(ports[at.Port()] || len(before) > 0 && renumbered(of, at.Port()), fmt.Sprintf("port %d", at.Port()))
		switch {
		case !has || len(before) == 0: // nothing to compare
			continue
		case len(of) == 0:
			add(known[none], none)
		}
		for _, w := range of {
			if kind, name := kindOf(w); kind == "" {
				add(known["any "+name], "workload "+w)
			} else {
				add(known[w] || known[name], w)
			}
		}
	}
	slices.Sort(out)
	return out
}

// renumbered reports whether each workload declares a port instead of one of old, under the same name.
func (n *network) renumbered(workloads []string, port uint16, old map[uint16]bool) bool {
	return len(workloads) > 0 && allOf(workloads, func(w string) bool {
		was, is := n.workloads[0].Ports(w), n.workloads[1].Ports(w)
		name, has := is[port]
		_, had := was[port]
		return has && !had && slices.ContainsFunc(slices.Collect(maps.Keys(old)), func(p uint16) bool {
			before, declared := was[p]
			_, still := is[p]
			return declared && !still && before == name
		})
	})
}

// kindOf returns the kind of a workload, "" if it is unknown, and the rest.
func kindOf(workload string) (kind, name string) {
	kind, name, _ = strings.Cut(workload, " ")
	if strings.Contains(kind, "/") {
		return "", workload
	}
	return kind, name
}

// ports returns the ports of the backends of a frontend's Service port, whatever the pool.
func (s *side) ports(f *ir.Frontend) map[uint16]bool {
	all := map[uint16]bool{}
	if f == nil {
		return all
	}
	for _, p := range s.services[f.Port.Service].Pools {
		if p.Port == f.Port {
			for _, b := range p.Backends {
				all[b.AddrPort.Port()] = true
			}
		}
	}
	return all
}

// open reports whether a frontend is external and admits all clients outside.
func (n *network) open(f *ir.Frontend) bool {
	return f != nil && f.Kind.External() && len(n.outside.without(n.never).without(n.admitted(f))) == 0
}

// admitted returns the clients that the source ranges of a frontend admit.
func (n *network) admitted(f *ir.Frontend) ranges {
	if len(f.SourceRanges) == 0 {
		return n.all
	}
	return rangesOf(n.family, sourceRanges(f)...)
}

func sourceRanges(f *ir.Frontend) (all []netip.Prefix) {
	for i := range f.SourceRanges {
		all = append(all, f.SourceRanges[i].Prefix)
	}
	return all
}

// ByEffect returns the changes of each Service separately by effect, the most dangerous effect
// first, then by name.
func ByEffect(services []Service) (out []Service) {
	for _, s := range services {
		slices.SortStableFunc(s.Flows, func(a, b Flow) int { return cmp.Compare(a.Change.Effect, b.Change.Effect) })
		slices.SortStableFunc(s.Notes, func(a, b Note) int { return cmp.Compare(a.Effect, b.Effect) })
		flows, notes := s.Flows, s.Notes
		for _, e := range Effects() {
			part := Service{Name: s.Name, Action: s.Action, Effect: e}
			part.Flows, flows = cut(flows, func(f *Flow) bool { return f.Change.Effect == e })
			part.Notes, notes = cut(notes, func(n *Note) bool { return n.Effect == e })
			if len(part.Flows)+len(part.Notes) > 0 {
				out = append(out, part)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Service) int { return cmp.Or(cmp.Compare(a.Effect, b.Effect), a.Name.Compare(b.Name)) })
	return out
}

// cut splits a list before the first element that is not selected.
func cut[T any](list []T, selected func(*T) bool) (first, rest []T) {
	n := 0
	for n < len(list) && selected(&list[n]) {
		n++
	}
	return list[:n:n], list[n:]
}

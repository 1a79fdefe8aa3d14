package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"

	"github.com/proxyc/proxyc/ir"
)

// Work describes the flows to check after a sync, by their frontends.
type Work struct {
	// Programs are in force after the sync. With All they contain all Services; otherwise only their
	// nodes are used, and Changes contains the Services.
	Programs ir.Programs
	Changes  ir.Changes
	All      bool
	Removed  []ir.Match // frontends
	// Missing reports that the kernel lacked rules before a sync of all Services. Connections may have begun
	// meanwhile.
	Missing bool
}

// frontends are those of a family that are in force, of the protocols whose entries may be stale.
// Every Selector judges by all of them, whichever flows it checks. They are safe for concurrent use.
type frontends struct {
	mu      sync.Mutex
	node    ir.Node
	matches map[ir.Match]*frontend
	of      map[ir.Name][]ir.Match
	every   bool // see NewReview
}

// frontend is the state that an entry is compared with. It is immutable.
type frontend struct {
	service  ir.Name
	backends map[netip.AddrPort]bool // serving endpoints; of TCP and SCTP, those that may have the frontend's address
	ranges   []ir.SourceRange        // from Frontend.SourceRanges
	first    bool                    // rules see only the first packet of a connection
}

// replace records the Services of a Program as the only ones in force. It returns the frontends of TCP
// and SCTP that are new, or all if missing is set.
func (f *frontends) replace(p *ir.Program, missing bool) (added []ir.Match) {
	next := frontends{node: p.Node, matches: map[ir.Match]*frontend{}, of: map[ir.Name][]ir.Match{}, every: f.every}
	if !p.Node.Mode.ByProcess() {
		for i := range p.Services {
			next.add(&p.Services[i])
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for m := range next.matches {
		if m.Protocol != ir.UDP && (missing || f.matches[m] == nil) {
			added = append(added, m)
		}
	}
	f.node, f.matches, f.of = p.Node, next.matches, next.of
	return added
}

// change records changes of Services as in force. It returns the frontends of the changed Services
// whose flows are to be checked: those of TCP and SCTP only if they are new.
func (f *frontends) change(node ir.Node, changes []ir.Change) (now []ir.Match) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.matches, f.of = map[ir.Match]*frontend{}, map[ir.Name][]ir.Match{}
	}
	f.node = node
	old := map[ir.Match]bool{}
	for _, c := range changes { // removals first: a frontend may move to another Service
		for _, m := range f.of[c.Name] {
			delete(f.matches, m)
			old[m] = true
		}
		delete(f.of, c.Name)
	}
	for _, c := range changes {
		if c.New == nil || node.Mode.ByProcess() {
			continue
		}
		f.add(c.New)
		for _, m := range f.of[c.Name] {
			if m.Protocol == ir.UDP || !old[m] {
				now = append(now, m)
			}
		}
	}
	return now
}

// add adds the frontends of a Service. Other modes than nftables see each packet without a reply as
// the first of a connection, so that entries of TCP and SCTP are not stale there.
func (f *frontends) add(s *ir.Service) {
	backends := map[ir.ServicePort]map[netip.AddrPort]bool{}
	for i := range s.Frontends {
		of := &s.Frontends[i]
		switch {
		case of.Match.Protocol != ir.UDP && !f.every && f.node.Mode != ir.ModeNFTables:
			continue
		case of.Match.Protocol != ir.UDP && !f.every:
			f.matches[of.Match] = &frontend{service: s.Name, backends: samePort(s, of)}
		default:
			if backends[of.Port] == nil {
				backends[of.Port] = serving(s, of.Port)
			}
			f.matches[of.Match] = &frontend{s.Name, backends[of.Port], of.SourceRanges, f.node.Mode == ir.ModeNFTables}
		}
		f.of[s.Name] = append(f.of[s.Name], of.Match)
	}
}

// samePort returns the backends of a frontend that have its port: a translation to one with its
// address is not visible in an entry. nil if there is none.
func samePort(s *ir.Service, f *ir.Frontend) (out map[netip.AddrPort]bool) {
	for i := range s.Pools {
		if s.Pools[i].Port != f.Port {
			continue
		}
		for _, b := range s.Pools[i].Backends {
			if b.AddrPort.Port() == f.Match.Port {
				ir.SetIn(&out, b.AddrPort, true)
			}
		}
	}
	return out
}

// has reports whether a frontend is in force.
func (f *frontends) has(m ir.Match) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.matches[m] != nil
}

// udp returns all frontends of UDP in force.
func (f *frontends) udp() (all []ir.Match) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for m := range f.matches {
		if m.Protocol == ir.UDP {
			all = append(all, m)
		}
	}
	return all
}

// scope is the set of frontends of one family whose flows are to be checked.
type scope struct {
	all     bool              // all frontends of UDP in force
	some    map[ir.Match]bool // some frontends in force; others are ignored
	removed map[ir.Match]bool
}

// update records the rules in force after a sync in one family. It returns the scope to check, or
// nil if there is none. A sync need not include the family: it may be served no longer, and have
// removed frontends. Flows of its node ports are not checked, since its addresses are unknown.
func (f *frontends) update(of ir.Family, w *Work) *scope {
	p := w.Programs.Of(of)
	some := cmp.Or(p, w.Programs.IPv4, w.Programs.IPv6)
	if some == nil {
		return nil
	}
	s := &scope{all: w.All && p != nil, some: map[ir.Match]bool{}, removed: map[ir.Match]bool{}}
	for _, m := range w.Removed {
		mayHave := p != nil && m.IsNodePort() || !m.IsNodePort() && ir.FamilyOf(m.Addr) == of
		if mayHave && m.Protocol == ir.UDP && !some.Node.Mode.ByProcess() {
			s.removed[m] = true
		}
	}
	var touched []ir.Match
	switch {
	case s.all:
		touched = f.replace(p, w.Missing)
	case p != nil:
		touched = f.change(p.Node, w.Changes.Of(of))
	case len(s.removed) == 0:
		return nil
	}
	for _, m := range touched {
		s.some[m] = true
	}
	return s
}

// union returns the union of two scopes. Either may be nil.
func (s *scope) union(o *scope) *scope {
	if s == nil || o == nil {
		return cmp.Or(s, o)
	}
	sum := &scope{all: s.all || o.all, some: maps.Clone(s.some), removed: maps.Clone(s.removed)}
	maps.Copy(sum.some, o.some)
	maps.Copy(sum.removed, o.removed)
	return sum
}

// selector returns the Selector of the scope.
func (s *scope) selector(family ir.Family, f *frontends) *Selector {
	sel := &Selector{family: family, inForce: f, checked: map[ir.Match]bool{}, removed: s.removed, ports: map[uint16]bool{}}
	if s.all {
		for _, m := range f.udp() {
			sel.checked[m] = true
		}
	}
	for m := range s.some {
		if f.has(m) {
			sel.checked[m] = true
		}
	}
	maps.Copy(sel.checked, s.removed)
	for m := range sel.checked {
		sel.ports[m.Port] = true
	}
	return sel
}

package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
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
}

// frontends are the UDP frontends of a family that are in force. Every Selector judges by all of
// them, whichever flows it checks. They are safe for concurrent use.
type frontends struct {
	mu      sync.Mutex
	node    ir.Node
	matches map[ir.Match]*frontend
	of      map[ir.Name][]ir.Match
}

// frontend is the state that an entry is compared with. It is immutable.
type frontend struct {
	service  ir.Name
	backends map[netip.AddrPort]bool // serving endpoints
	ranges   []ir.SourceRange        // from Frontend.SourceRanges
}

// replace records the Services of a Program as the only ones in force.
func (f *frontends) replace(p *ir.Program) {
	next := frontends{matches: map[ir.Match]*frontend{}, of: map[ir.Name][]ir.Match{}}
	if !p.Node.Mode.ByProcess() {
		for i := range p.Services {
			next.add(&p.Services[i])
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node, f.matches, f.of = p.Node, next.matches, next.of
}

// change records changes of Services as in force. It returns the frontends of the changed Services.
func (f *frontends) change(node ir.Node, changes []ir.Change) (now []ir.Match) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.matches, f.of = map[ir.Match]*frontend{}, map[ir.Name][]ir.Match{}
	}
	f.node = node
	for _, c := range changes { // removals first: a frontend may move to another Service
		for _, m := range f.of[c.Name] {
			delete(f.matches, m)
		}
		delete(f.of, c.Name)
	}
	for _, c := range changes {
		if c.New != nil && !node.Mode.ByProcess() {
			f.add(c.New)
			now = append(now, f.of[c.Name]...)
		}
	}
	return now
}

// add adds the UDP frontends of a Service.
func (f *frontends) add(s *ir.Service) {
	backends := map[ir.ServicePort]map[netip.AddrPort]bool{}
	for i := range s.Frontends {
		of := &s.Frontends[i]
		if of.Match.Protocol != ir.UDP {
			continue
		}
		if backends[of.Port] == nil {
			backends[of.Port] = serving(s, of.Port)
		}
		f.matches[of.Match] = &frontend{s.Name, backends[of.Port], of.SourceRanges}
		f.of[s.Name] = append(f.of[s.Name], of.Match)
	}
}

// has reports whether a frontend is in force.
func (f *frontends) has(m ir.Match) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.matches[m] != nil
}

// all returns all frontends in force.
func (f *frontends) all() []ir.Match {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.matches))
}

// scope is the set of frontends of one family whose flows are to be checked.
type scope struct {
	all     bool              // all frontends in force
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
	switch {
	case p != nil && w.All:
		f.replace(p)
	case p != nil:
		for _, m := range f.change(p.Node, w.Changes.Of(of)) {
			s.some[m] = true
		}
	case len(s.removed) == 0:
		return nil
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

// maxRemoved bounds the removed frontends of a scope whose flows could not be deleted.
const maxRemoved = 10_000

// bound drops frontends that are no longer in force, and removed ones above maxRemoved. Both would
// accumulate while deletions fail. It returns the number of dropped removed ones.
func (s *scope) bound(f *frontends) (dropped int) {
	maps.DeleteFunc(s.some, func(m ir.Match, _ bool) bool { return !f.has(m) })
	for m := range s.removed {
		if len(s.removed) <= maxRemoved {
			break
		}
		delete(s.removed, m)
		dropped++
	}
	return dropped
}

// selector returns the Selector of the scope.
func (s *scope) selector(family ir.Family, f *frontends) *Selector {
	sel := &Selector{family: family, inForce: f, checked: map[ir.Match]bool{}, removed: s.removed, ports: map[uint16]bool{}}
	if s.all {
		for _, m := range f.all() {
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

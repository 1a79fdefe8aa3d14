package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/ir"
)

// Work is what a sync gives the Cleaner to do: the flows of which frontends to look at.
type Work struct {
	// Programs are what is in force after the sync: their nodes and, if All, all
	// of their Services; else the Services are those of Changes.
	Programs ir.Programs
	Changes  ir.Changes
	All      bool
	Removed  []ir.Match // frontends
}

// frontends are the UDP frontends of a family that are in force. Every Selector
// judges by all of them, whichever flows it looks at. Several goroutines may use
// them.
type frontends struct {
	mu      sync.Mutex
	node    ir.Node
	matches map[ir.Match]*frontend
	of      map[ir.Name][]ir.Match
}

// frontend is what an entry is held against. It does not change.
type frontend struct {
	service  ir.Name
	backends map[netip.AddrPort]bool // that serve
	ranges   []ir.SourceRange        // of Frontend.SourceRanges
}

// replace notes that the Services of a Program are in force, and no others.
func (f *frontends) replace(p *ir.Program) {
	next := frontends{matches: map[ir.Match]*frontend{}, of: map[ir.Name][]ir.Match{}}
	if p.Node.Mode != ir.ModeUserspace {
		for i := range p.Services {
			next.add(&p.Services[i])
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node, f.matches, f.of = p.Node, next.matches, next.of
}

// change notes that changes of Services are in force, and returns the frontends
// that the changed ones have now.
func (f *frontends) change(node ir.Node, changes []ir.Change) (now []ir.Match) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.matches, f.of = map[ir.Match]*frontend{}, map[ir.Name][]ir.Match{}
	}
	f.node = node
	for _, c := range changes { // before any is added: a frontend may go from one to another
		for _, m := range f.of[c.Name] {
			delete(f.matches, m)
		}
		delete(f.of, c.Name)
	}
	for _, c := range changes {
		if c.New != nil && node.Mode != ir.ModeUserspace {
			f.add(c.New)
			now = append(now, f.of[c.Name]...)
		}
	}
	return now
}

// add enters the UDP frontends of a Service.
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

// all returns those that are in force.
func (f *frontends) all() []ir.Match {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.matches))
}

// scope is the frontends of one family whose flows are to be looked at.
type scope struct {
	all     bool              // those in force
	some    map[ir.Match]bool // of those in force; others are ignored
	removed map[ir.Match]bool
}

// take notes what is in force after a sync in one family, and returns what there
// is to look at; nil if the sync was not for the family.
func (f *frontends) take(of ir.Family, w *Work) *scope {
	p := w.Programs.Of(of)
	if p == nil {
		return nil
	}
	s := &scope{all: w.All, some: map[ir.Match]bool{}, removed: map[ir.Match]bool{}}
	if w.All {
		f.replace(p)
	} else {
		for _, m := range f.change(p.Node, w.Changes.Of(of)) {
			s.some[m] = true
		}
	}
	for _, m := range w.Removed {
		if p.Node.Mode != ir.ModeUserspace && m.Protocol == ir.UDP && (m.IsNodePort() || ir.FamilyOf(m.Addr) == of) {
			s.removed[m] = true
		}
	}
	return s
}

// and returns both scopes in one. Either may be nil.
func (s *scope) and(o *scope) *scope {
	if s == nil || o == nil {
		return cmp.Or(s, o)
	}
	sum := &scope{all: s.all || o.all, some: maps.Clone(s.some), removed: maps.Clone(s.removed)}
	maps.Copy(sum.some, o.some)
	maps.Copy(sum.removed, o.removed)
	return sum
}

// maxRemoved is how many frontends that are gone a scope has at most, whose flows
// could not be deleted.
const maxRemoved = 10_000

// bounded returns the scope without frontends that are no longer in force, and with
// maxRemoved that are gone: both would become more for as long as flows cannot be
// deleted.
func (s *scope) bounded(f *frontends) *scope {
	maps.DeleteFunc(s.some, func(m ir.Match, _ bool) bool { return !f.has(m) })
	for m := range s.removed {
		if len(s.removed) <= maxRemoved {
			break
		}
		delete(s.removed, m)
	}
	return s
}

// selector returns the Selector of the scope.
func (s *scope) selector(family ir.Family, f *frontends) *Selector {
	sel := &Selector{family: family, inForce: f, look: map[ir.Match]bool{}, removed: s.removed, ports: map[uint16]bool{}}
	if s.all {
		for _, m := range f.all() {
			sel.look[m] = true
		}
	}
	for m := range s.some {
		if f.has(m) {
			sel.look[m] = true
		}
	}
	maps.Copy(sel.look, s.removed)
	for m := range sel.look {
		sel.ports[m.Port] = true
	}
	return sel
}

package conntrack

import (
	"cmp"
	"maps"
	"slices"

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

// scope is the frontends of one family whose flows are to be looked at, by the
// Services that have them.
type scope struct {
	node     ir.Node
	services map[ir.Name]*ir.Service // nil: without UDP frontends, or gone
	removed  map[ir.Match]bool
	all      bool // no Service beside these has UDP frontends
}

// of returns the scope of Work in one family.
func (w *Work) of(f ir.Family) *scope {
	p := w.Programs.Of(f)
	if p == nil {
		return nil
	}
	s := &scope{node: p.Node, services: map[ir.Name]*ir.Service{}, removed: map[ir.Match]bool{}, all: w.All}
	if w.All {
		for i := range p.Services {
			if service := &p.Services[i]; hasUDP(service) {
				s.services[service.Name] = service
			}
		}
	} else {
		for _, c := range w.Changes.Of(f) {
			s.services[c.Name] = nil
			if c.New != nil && hasUDP(c.New) {
				s.services[c.Name] = c.New
			}
		}
	}
	for _, m := range w.Removed {
		if m.Protocol == ir.UDP && (m.IsNodePort() || ir.FamilyOf(m.Addr) == f) {
			s.removed[m] = true
		}
	}
	return s
}

func hasUDP(s *ir.Service) bool {
	for i := range s.Frontends {
		if s.Frontends[i].Match.Protocol == ir.UDP {
			return true
		}
	}
	return false
}

// over returns both scopes in one: s is what came after old. Either may be nil.
func (s *scope) over(old *scope) *scope {
	if s == nil || old == nil {
		return cmp.Or(s, old)
	}
	sum := &scope{node: s.node, services: map[ir.Name]*ir.Service{}, removed: maps.Clone(old.removed), all: s.all || old.all}
	if !s.all {
		maps.Copy(sum.services, old.services)
	}
	maps.Copy(sum.services, s.services)
	maps.Copy(sum.removed, s.removed)
	return sum
}

// maxRemoved is how many frontends that are gone a scope has at most, whose flows
// could not be deleted.
const maxRemoved = 10_000

// bounded returns the scope with maxRemoved frontends that are gone: they would
// become more for as long as their flows cannot be deleted.
func (s *scope) bounded() *scope {
	for m := range s.removed {
		if len(s.removed) <= maxRemoved {
			break
		}
		delete(s.removed, m)
	}
	return s
}

// idle reports whether there is no flow to look at.
func (s *scope) idle() bool {
	for _, service := range s.services {
		if service != nil {
			return false
		}
	}
	return len(s.removed) == 0
}

// selector returns the Selector of the scope.
func (s *scope) selector(f ir.Family) *Selector {
	p := &ir.Program{Family: f, Node: s.node}
	for _, service := range s.services {
		if service != nil {
			p.Services = append(p.Services, *service)
		}
	}
	return NewSelector(p, slices.Collect(maps.Keys(s.removed)))
}

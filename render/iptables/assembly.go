package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Assembly is what a Ruleset is made of: the Services, and their entries in the
// hubs. A change of a few Services makes the chains that it touches, however
// many others there are.
type Assembly struct {
	node     ir.Node
	hubs     *hubs
	services map[ir.Name]ir.Service
	size     [2]int
}

// NewAssembly gives the Assembly of Lower(p).
func NewAssembly(p *ir.Program) *Assembly {
	a := &Assembly{node: p.Node, services: make(map[ir.Name]ir.Service, len(p.Services))}
	fragments := make([]*Fragment, len(p.Services))
	for i := range p.Services {
		s := &p.Services[i]
		a.services[s.Name] = *s
		fragments[i] = LowerService(p.Family, &a.node, s)
	}
	a.hubs = newHubs(p.Family, fragments)
	a.size = a.count(fragments)
	return a
}

// Size is the number of rules in each table of the Ruleset, in the order of its Tables.
func (a *Assembly) Size() [2]int { return a.size }

func (a *Assembly) count(fragments []*Fragment) [2]int {
	size := a.partial([hubCount]touched{}, fragments).Size()
	for i, t := range a.hubs.trees {
		if !t.flat() {
			size[hub(i).table()] += t.hidden(&t.root)
		}
	}
	return size
}

func (a *Assembly) lower(s *ir.Service) *Fragment { return LowerService(a.hubs.family, &a.node, s) }

// Change puts the new Services in the place of those that are there now, and
// gives what the Ruleset was and is: of both, the fixed part, and all other
// chains that may differ.
func (a *Assembly) Change(changes []ir.Change) (have, want *Ruleset) {
	var old, now []*Fragment
	for _, c := range changes {
		if s, exists := a.services[c.Name]; exists {
			old = append(old, a.lower(&s))
			delete(a.services, c.Name)
		}
		if c.New != nil {
			now = append(now, a.lower(c.New))
			a.services[c.Name] = *c.New
		}
	}
	touched := a.hubs.touched(old, now)
	have = a.partial(touched, old)
	a.hubs.replace(old, now)
	want = a.partial(touched, now)
	before, after := have.Size(), want.Size()
	for i := range a.size {
		a.size[i] += after[i] - before[i]
	}
	return have, want
}

// partial gives the fixed part, what is touched of the hubs, and the chains of fragments.
func (a *Assembly) partial(t [hubCount]touched, fragments []*Fragment) *Ruleset {
	var d [hubCount]dispatched
	for i, tree := range a.hubs.trees {
		if t[i].whole || tree.flat() {
			d[i] = tree.all()
		} else {
			d[i] = tree.along(t[i].keys)
		}
	}
	var chains []Chain
	for _, f := range fragments {
		chains = append(chains, f.Chains...)
	}
	return a.hubs.ruleset(&a.node, d, chains)
}

// touched says where a hub may change: whole where it is one chain, or may become one.
type touched struct {
	keys  []key // in order
	whole bool
}

func (h *hubs) touched(old, now []*Fragment) (all [hubCount]touched) {
	for i, t := range h.trees {
		gone := entries(old, hub(i), t.key)
		all[i].whole = t.size-len(gone) <= treeThreshold
		for _, e := range append(gone, entries(now, hub(i), t.key)...) {
			all[i].keys = append(all[i].keys, e.key)
		}
		slices.SortFunc(all[i].keys, key.compare)
	}
	return all
}

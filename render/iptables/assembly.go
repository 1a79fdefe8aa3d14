package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Assembly is what Services share in a Ruleset: their entries in the hubs. A
// change of a few Services makes the chains that it touches, however many others
// there are.
type Assembly struct {
	node ir.Node
	hubs *hubs
	size [2]int
}

// NewAssembly gives the Assembly of Lower(p).
func NewAssembly(p *ir.Program) *Assembly {
	a := &Assembly{node: p.Node}
	fragments := make([]*Fragment, len(p.Services))
	own := 0
	for i := range p.Services {
		f := LowerService(p.Family, &a.node, &p.Services[i])
		for _, c := range f.Chains {
			own += len(c.Rules)
		}
		f.Chains = nil // they can be made again
		fragments[i] = f
	}
	a.hubs = newHubs(p.Family, fragments)
	a.size = a.partial([hubCount]touched{}, nil).Size()
	a.size[hubServices.table()] += own // chains of Services are in table nat
	for i, t := range a.hubs.trees {
		if !t.flat() {
			a.size[hub(i).table()] += t.hidden(&t.root)
		}
	}
	return a
}

// Size is the number of rules in each table of the Ruleset, in the order of its Tables.
func (a *Assembly) Size() [2]int { return a.size }

// Change puts what is new in the place of what was, which must be what the
// Assembly has, and gives what the Ruleset was and is: of both, the fixed part,
// and all other chains that may differ.
func (a *Assembly) Change(changes []ir.Change) (have, want *Ruleset) {
	var old, now []*Fragment
	for _, c := range changes {
		if c.Old != nil {
			old = append(old, LowerService(a.hubs.family, &a.node, c.Old))
		}
		if c.New != nil {
			now = append(now, LowerService(a.hubs.family, &a.node, c.New))
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

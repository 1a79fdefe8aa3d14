package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Lowerer lowers a Program and then its changes. It keeps the shared part of a
// Ruleset, the entries in the dispatch chains. A change of a few Services
// rebuilds only the chains that it touches, regardless of the number of Services.
type Lowerer struct {
	node     ir.Node
	dispatch *dispatchTrees
	size     [2]int
}

// NewLowerer returns the Lowerer of Lower(p).
func NewLowerer(p *ir.Program) *Lowerer {
	l := &Lowerer{node: p.Node}
	fragments := make([]*Fragment, len(p.Services))
	own := 0
	for i := range p.Services {
		f := LowerService(p.Family, &l.node, &p.Services[i])
		for _, c := range f.Chains {
			own += len(c.Rules)
		}
		f.Chains = nil // can be rebuilt
		fragments[i] = f
	}
	l.dispatch = newDispatchTrees(p.Family, fragments)
	l.size = l.partial([dispatchCount]touched{}, nil).Size()
	l.size[dispatchServices.table()] += own // chains of Services are in table nat
	for i, t := range l.dispatch.trees {
		if !t.flat() {
			l.size[dispatchChain(i).table()] += t.hidden(&t.root)
		}
	}
	return l
}

// Size returns the number of rules in each table of the Ruleset, in the order of
// its Tables.
func (l *Lowerer) Size() [2]int { return l.size }

// Change applies changes, whose old Services must be the Lowerer's current ones.
// It returns the Ruleset before and after, each reduced to the fixed part and all
// other chains that may differ.
func (l *Lowerer) Change(changes []ir.Change) (have, want *Ruleset) {
	var old, now []*Fragment
	for _, c := range changes {
		if c.Old != nil {
			old = append(old, LowerService(l.dispatch.family, &l.node, c.Old))
		}
		if c.New != nil {
			now = append(now, LowerService(l.dispatch.family, &l.node, c.New))
		}
	}
	touched := l.dispatch.touched(old, now)
	have = l.partial(touched, old)
	l.dispatch.replace(old, now)
	want = l.partial(touched, now)
	before, after := have.Size(), want.Size()
	for i := range l.size {
		l.size[i] += after[i] - before[i]
	}
	return have, want
}

// partial returns the fixed part, the touched dispatch chains, and the chains of
// fragments.
func (l *Lowerer) partial(t [dispatchCount]touched, fragments []*Fragment) *Ruleset {
	var d [dispatchCount]dispatched
	for i, tree := range l.dispatch.trees {
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
	return l.dispatch.ruleset(&l.node, d, chains)
}

// touched is the part of a dispatch chain that may change: the chains of keys, or
// the whole chain if it is, or may become, flat.
type touched struct {
	keys  []key // sorted
	whole bool
}

func (h *dispatchTrees) touched(old, now []*Fragment) (all [dispatchCount]touched) {
	for i, t := range h.trees {
		gone := entries(old, dispatchChain(i), t.key)
		all[i].whole = t.size-len(gone) <= treeThreshold
		for _, e := range append(gone, entries(now, dispatchChain(i), t.key)...) {
			all[i].keys = append(all[i].keys, e.key)
		}
		slices.SortFunc(all[i].keys, key.compare)
	}
	return all
}

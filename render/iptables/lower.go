package iptables

import (
	"cmp"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Lower returns the Ruleset of a Program.
func Lower(p *ir.Program) *Ruleset {
	fragments := make([]*Fragment, len(p.Services))
	for i := range p.Services {
		fragments[i] = LowerService(p.Family, &p.Node, &p.Services[i])
	}
	return Assemble(p.Family, &p.Node, fragments)
}

// Assemble combines the fixed part and the Fragments of a node's Services.
func Assemble(family ir.Family, node *ir.Node, fragments []*Fragment) *Ruleset {
	n := 0
	for _, f := range fragments {
		n += len(f.Chains)
	}
	chains := make([]Chain, 0, n)
	for _, f := range fragments {
		chains = append(chains, f.Chains...)
	}
	h := newDispatchTrees(family, fragments)
	return h.ruleset(node, h.all(), chains)
}

// dispatchTrees are the dispatch chains, which Services share. Each is a tree of
// their entries.
type dispatchTrees struct {
	family ir.Family
	trees  [dispatchCount]*tree
	health []Rule // of filter KUBE-NODEPORTS, sorted
}

// newDispatchTrees returns the dispatch chains with the entries of the Fragments.
func newDispatchTrees(family ir.Family, fragments []*Fragment) *dispatchTrees {
	addrs, ports := byDst(family), byPort()
	made := [dispatchCount]struct {
		space
		stem string
	}{
		dispatchServices:      {addrs, stemServicesTree},
		dispatchNodePorts:     {ports, stemNodePortsTree},
		dispatchEmptyCluster:  {addrs, stemServicesTree},
		dispatchEmptyExternal: {addrs, stemExternalTree},
		dispatchEmptyNodePort: {ports, stemEmptyNPTree},
		dispatchGuard:         {addrs, stemProxyFWTree},
		dispatchHairpin:       {bySrc(family), stemHairpinTree},
	}
	h := &dispatchTrees{family: family}
	for i, m := range made {
		h.trees[i] = newTree(m.space, m.stem, entries(fragments, dispatchChain(i), m.key))
	}
	for _, f := range fragments {
		h.health = append(h.health, f.Health...)
	}
	slices.SortFunc(h.health, compareHealth)
	return h
}

// replace removes the entries of old from the dispatch chains and inserts those
// of now. An address may move from one Service to another.
func (h *dispatchTrees) replace(old, now []*Fragment) {
	for i, t := range h.trees {
		for _, e := range entries(old, dispatchChain(i), t.key) {
			t.remove(e.key, e.service())
		}
		for _, e := range entries(now, dispatchChain(i), t.key) {
			t.insert(e)
		}
	}
	for _, f := range old {
		for _, r := range f.Health {
			h.health = slices.DeleteFunc(h.health, func(o Rule) bool { return o.Equal(&r) })
		}
	}
	for _, f := range now {
		h.health = append(h.health, f.Health...)
	}
	slices.SortFunc(h.health, compareHealth)
}

func compareHealth(a, b Rule) int {
	return cmp.Or(cmp.Compare(a.Ports.First, b.Ports.First), cmp.Compare(a.Comment, b.Comment))
}

// all returns every dispatch chain with all chains below it.
func (h *dispatchTrees) all() (all [dispatchCount]dispatched) {
	for i, t := range h.trees {
		all[i] = t.all()
	}
	return all
}

// ruleset combines the fixed part, the given dispatch chains and the chains of
// Services.
func (h *dispatchTrees) ruleset(node *ir.Node, d [dispatchCount]dispatched, chains []Chain) *Ruleset {
	filterJumps, natJumps := builtInJumps(node)
	r := &Ruleset{
		Family: h.family,
		Filter: Table{Name: "filter", Jumps: filterJumps},
		Nat:    Table{Name: "nat", Jumps: natJumps},
	}
	r.Filter.Chains = slices.Concat([]Chain{
		{ChainServices, d[dispatchEmptyCluster].rules},
		{chainExternal, slices.Concat(d[dispatchEmptyExternal].rules, d[dispatchEmptyNodePort].rules)},
		{ChainNodePorts, slices.Clone(h.health)},
		{ChainForward, forward(node)},
		{ChainProxyFW, d[dispatchGuard].rules},
	}, d[dispatchEmptyCluster].below, d[dispatchEmptyExternal].below, d[dispatchEmptyNodePort].below, d[dispatchGuard].below)
	if node.NodePorts.Loopback {
		r.Filter.Chains = slices.Insert(r.Filter.Chains, 5, Chain{chainFirewall, firewall()})
	}
	r.Nat.Chains = slices.Concat([]Chain{
		{ChainMarkMasq, markMasq(node)},
		{chainHairpin, d[dispatchHairpin].rules},
		{ChainPostrouting, postrouting(node)},
		{ChainServices, slices.Concat(d[dispatchServices].rules, nodePortDispatch(h.family, &node.NodePorts))},
		{ChainNodePorts, d[dispatchNodePorts].rules},
	}, d[dispatchServices].below, d[dispatchNodePorts].below, d[dispatchHairpin].below, chains)
	return r
}

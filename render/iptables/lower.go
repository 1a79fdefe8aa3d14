package iptables

import (
	"cmp"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Lower gives the Ruleset of a Program.
func Lower(p *ir.Program) *Ruleset {
	fragments := make([]*Fragment, len(p.Services))
	for i := range p.Services {
		fragments[i] = LowerService(p.Family, &p.Node, &p.Services[i])
	}
	return Assemble(p.Family, &p.Node, fragments)
}

// Assemble puts the fixed part and the Fragments of a node's Services together.
func Assemble(family ir.Family, node *ir.Node, fragments []*Fragment) *Ruleset {
	n := 0
	for _, f := range fragments {
		n += len(f.Chains)
	}
	chains := make([]Chain, 0, n)
	for _, f := range fragments {
		chains = append(chains, f.Chains...)
	}
	h := newHubs(family, fragments)
	return h.ruleset(node, h.all(), chains)
}

// hubs are what Services share: each is a tree of their entries.
type hubs struct {
	family ir.Family
	trees  [hubCount]*tree
	health []Rule // of filter KUBE-NODEPORTS, in order
}

// newHubs gives the hubs that hold what the Fragments have in them.
func newHubs(family ir.Family, fragments []*Fragment) *hubs {
	addrs, ports := byDst(family), byPort()
	made := [hubCount]struct {
		space
		stem string
	}{
		hubServices:      {addrs, stemServicesTree},
		hubNodePorts:     {ports, stemNodePortsTree},
		hubEmptyCluster:  {addrs, stemServicesTree},
		hubEmptyExternal: {addrs, stemExternalTree},
		hubEmptyNodePort: {ports, stemEmptyNPTree},
		hubGuard:         {addrs, stemProxyFWTree},
		hubHairpin:       {bySrc(family), stemHairpinTree},
	}
	h := &hubs{family: family}
	for i, m := range made {
		h.trees[i] = newTree(m.space, m.stem, entries(fragments, hub(i), m.key))
	}
	for _, f := range fragments {
		h.health = append(h.health, f.Health...)
	}
	slices.SortFunc(h.health, compareHealth)
	return h
}

// replace takes out what the Fragments like old have in hubs, and enters what
// now has. An address may pass from one Service to another.
func (h *hubs) replace(old, now []*Fragment) {
	for i, t := range h.trees {
		for _, e := range entries(old, hub(i), t.key) {
			t.remove(e.key, e.service())
		}
		for _, e := range entries(now, hub(i), t.key) {
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

// all gives every hub with all of its chains.
func (h *hubs) all() (all [hubCount]dispatched) {
	for i, t := range h.trees {
		all[i] = t.all()
	}
	return all
}

// ruleset puts the fixed part together with hubs, as far as these were made,
// and chains of Services.
func (h *hubs) ruleset(node *ir.Node, d [hubCount]dispatched, chains []Chain) *Ruleset {
	filterHooks, natHooks := hooks(node)
	r := &Ruleset{
		Family: h.family,
		Filter: Table{Name: "filter", Hooks: filterHooks},
		Nat:    Table{Name: "nat", Hooks: natHooks},
	}
	r.Filter.Chains = slices.Concat([]Chain{
		{ChainServices, d[hubEmptyCluster].rules},
		{chainExternal, slices.Concat(d[hubEmptyExternal].rules, d[hubEmptyNodePort].rules)},
		{chainNodePorts, slices.Clone(h.health)},
		{ChainForward, forward(node)},
		{ChainProxyFW, d[hubGuard].rules},
	}, d[hubEmptyCluster].below, d[hubEmptyExternal].below, d[hubEmptyNodePort].below, d[hubGuard].below)
	if node.NodePorts.Loopback {
		r.Filter.Chains = slices.Insert(r.Filter.Chains, 5, Chain{chainFirewall, firewall()})
	}
	r.Nat.Chains = slices.Concat([]Chain{
		{ChainMarkMasq, markMasq(node)},
		{chainHairpin, d[hubHairpin].rules},
		{ChainPostrouting, postrouting(node)},
		{ChainServices, slices.Concat(d[hubServices].rules, nodePortDispatch(h.family, &node.NodePorts))},
		{chainNodePorts, d[hubNodePorts].rules},
	}, d[hubServices].below, d[hubNodePorts].below, d[hubHairpin].below, chains)
	return r
}

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
	a := assembly{}
	a.collect(fragments)
	filterHooks, natHooks := hooks(node)
	r := &Ruleset{
		Family: family,
		Filter: Table{Name: "filter", Hooks: filterHooks},
		Nat:    Table{Name: "nat", Hooks: natHooks},
	}

	addrs, ports := byDst(family), byPort()
	emptyCluster := a.hub(hubEmptyCluster, addrs, stemServicesTree)
	emptyExternal := a.hub(hubEmptyExternal, addrs, stemExternalTree)
	emptyNodePort := a.hub(hubEmptyNodePort, ports, stemEmptyNPTree)
	guard := a.hub(hubGuard, addrs, stemProxyFWTree)
	r.Filter.Chains = slices.Concat([]Chain{
		{chainServices, emptyCluster.rules},
		{chainExternal, slices.Concat(emptyExternal.rules, emptyNodePort.rules)},
		{chainNodePorts, a.health},
		{chainForward, forward(node)},
		{chainProxyFW, guard.rules},
	}, emptyCluster.tree, emptyExternal.tree, emptyNodePort.tree, guard.tree)
	if node.NodePorts.Loopback {
		r.Filter.Chains = slices.Insert(r.Filter.Chains, 5, Chain{chainFirewall, firewall()})
	}

	services := a.hub(hubServices, addrs, stemServicesTree)
	nodePorts := a.hub(hubNodePorts, ports, stemNodePortsTree)
	hairpin := a.hairpin(bySrc(family))
	r.Nat.Chains = slices.Concat([]Chain{
		{chainMarkMasq, markMasq(node)},
		{chainHairpin, hairpin.rules},
		{chainPostrouting, postrouting(node)},
		{chainServices, slices.Concat(services.rules, nodePortDispatch(family, &node.NodePorts))},
		{chainNodePorts, nodePorts.rules},
	}, services.tree, nodePorts.tree, hairpin.tree, a.chains)
	return r
}

// assembly gathers what the Fragments say of each hub.
type assembly struct {
	entries [hubs][]*Rule
	pools   []*ir.Pool
	health  []Rule
	chains  []Chain
}

func (a *assembly) collect(fragments []*Fragment) {
	chains := 0
	for _, f := range fragments {
		chains += len(f.Chains)
	}
	a.chains = make([]Chain, 0, chains)
	for _, f := range fragments {
		a.chains = append(a.chains, f.Chains...)
		a.health = append(a.health, f.Health...)
		a.pools = append(a.pools, f.Hairpin...)
		for h := range f.Entries {
			for i := range f.Entries[h] {
				a.entries[h] = append(a.entries[h], &f.Entries[h][i])
			}
		}
	}
	slices.SortFunc(a.health, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Ports.First, b.Ports.First), cmp.Compare(a.Comment, b.Comment))
	})
}

// dispatched is a hub's own chain and what is below it.
type dispatched struct {
	rules []Rule
	tree  []Chain
}

func (a *assembly) hub(h hub, s space, stem string) dispatched {
	entries := make([]entry, len(a.entries[h]))
	for i, r := range a.entries[h] {
		entries[i] = entry{key: s.key(r), rule: r}
	}
	rules, tree := dispatch(s, stem, entries)
	return dispatched{rules, tree}
}

func (a *assembly) hairpin(s space) dispatched {
	n := 0
	for _, p := range a.pools {
		n += len(p.Backends)
	}
	entries := make([]entry, 0, n)
	for _, p := range a.pools {
		for i := range p.Backends {
			b := &p.Backends[i]
			entries = append(entries, entry{key: addrKey(b.AddrPort.Addr(), 0), pool: p, backend: b})
		}
	}
	rules, tree := dispatch(s, stemHairpinTree, entries)
	return dispatched{rules, tree}
}

package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Services with the same source ranges share their chains and sets. If the kernel rejects one, all
// these Services are omitted. Chains and sets that are then unused are omitted, too.

// servicesUsing returns the Services with added frontends that use a set of source ranges.
func (c *change) servicesUsing(set string) (names []ir.Name) {
	for _, e := range c.sets.elements {
		for i := range e.added {
			if chain := e.added[i].Verdict.Chain; chain != "" && slices.ContainsFunc(c.chains.fill, func(ch *rules.Chain) bool { return ch.Name == chain && looksUp(ch, set) }) {
				names = append(names, c.serviceOf(e.set, &e.added[i]))
			}
		}
	}
	return names
}

// looksUp reports whether a rule of the chain matches a set.
func looksUp(c *rules.Chain, set string) bool {
	return slices.ContainsFunc(c.Rules, func(r rules.Rule) bool {
		return slices.ContainsFunc(r.Stmts, func(s rules.Stmt) bool { m, ok := s.(rules.MatchSet); return ok && m.Set == set })
	})
}

// dropUnusedSources removes new chains of source ranges without new elements that jump to them, and
// new sets that no chain looks up.
func (c *change) dropUnusedSources() {
	jumped := map[string]bool{}
	for _, e := range c.sets.elements {
		for i := range e.added {
			jumped[e.added[i].Verdict.Chain] = true
		}
	}
	unusedChains := map[string]bool{}
	for _, ch := range c.chains.create {
		if rules.IsSources(ch.Name) && !jumped[ch.Name] {
			unusedChains[ch.Name] = true
		}
	}
	omit := func(ch *rules.Chain) bool { return unusedChains[ch.Name] }
	c.chains.create, c.chains.fill = except(c.chains.create, omit), except(c.chains.fill, omit)
	unused := map[string]bool{}
	for _, s := range c.sets.create {
		if rules.IsSources(s.Name) && !slices.ContainsFunc(c.chains.fill, func(ch *rules.Chain) bool { return looksUp(ch, s.Name) }) {
			unused[s.Name] = true
		}
	}
	c.sets.create = except(c.sets.create, func(s *rules.Set) bool { return unused[s.Name] })
	c.sets.elements = except(c.sets.elements, func(e elementChange) bool { return unused[e.set.Name] })
}

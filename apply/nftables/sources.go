package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Chains and sets of source ranges are those of all Services with the same ranges. What the
// kernel refuses of them it refuses these Services; and without them nobody needs what came for them.

// servicesUsing returns the Services of which frontends come that a set of source ranges admits to.
func (c *change) servicesUsing(set string) (names []ir.Name) {
	for _, e := range c.elements {
		for i := range e.added {
			if chain := e.added[i].Verdict.Chain; chain != "" && slices.ContainsFunc(c.fill, func(ch *rules.Chain) bool { return ch.Name == chain && looksUp(ch, set) }) {
				names = append(names, c.serviceOf(e.set, &e.added[i]))
			}
		}
	}
	return names
}

// looksUp reports whether a rule of the chain looks for something in the set.
func looksUp(c *rules.Chain, set string) bool {
	return slices.ContainsFunc(c.Rules, func(r rules.Rule) bool {
		return slices.ContainsFunc(r.Stmts, func(s rules.Stmt) bool { m, ok := s.(rules.MatchSet); return ok && m.Set == set })
	})
}

// dropUnusedSources leaves out the chains of source ranges that come and to which nothing
// leads that comes, and the sets that come and that no chain asks.
func (c *change) dropUnusedSources() {
	led := map[string]bool{}
	for _, e := range c.elements {
		for i := range e.added {
			led[e.added[i].Verdict.Chain] = true
		}
	}
	idle := map[string]bool{}
	for _, ch := range c.chains {
		if rules.IsSources(ch.Name) && !led[ch.Name] {
			idle[ch.Name] = true
		}
	}
	leave := func(ch *rules.Chain) bool { return idle[ch.Name] }
	c.chains, c.fill = slices.DeleteFunc(slices.Clone(c.chains), leave), slices.DeleteFunc(slices.Clone(c.fill), leave)
	unasked := map[string]bool{}
	for _, s := range c.sets {
		if rules.IsSources(s.Name) && !slices.ContainsFunc(c.fill, func(ch *rules.Chain) bool { return looksUp(ch, s.Name) }) {
			unasked[s.Name] = true
		}
	}
	c.sets = slices.DeleteFunc(slices.Clone(c.sets), func(s *rules.Set) bool { return unasked[s.Name] })
	c.elements = slices.DeleteFunc(slices.Clone(c.elements), func(e elementChange) bool { return unasked[e.set.Name] })
}

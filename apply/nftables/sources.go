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

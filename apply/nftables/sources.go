package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Services with the same source ranges share their chains and sets. If the kernel rejects one, all
// these Services are omitted. Chains and sets that are then unused are omitted, too.

// servicesUsing returns the Services with added frontends that use a set of source ranges: their chains
// jump to the one that matches it.
func (c *change) servicesUsing(set string) (names []ir.Name) {
	users := map[string]bool{}
	for range 2 {
		for _, ch := range c.chains.fill {
			if uses(ch, set, users) {
				users[ch.Name] = true
			}
		}
	}
	for _, e := range c.sets.elements {
		for i := range e.added {
			if users[e.added[i].Verdict.Chain] {
				names = append(names, c.serviceOf(e.set, &e.added[i]))
			}
		}
	}
	return names
}

// uses reports whether a rule of the chain matches a set, or calls one of some chains.
func uses(c *rules.Chain, set string, chains map[string]bool) bool {
	return slices.ContainsFunc(c.Rules, func(r rules.Rule) bool {
		return slices.ContainsFunc(r.Stmts, func(s rules.Stmt) bool {
			switch s := s.(type) {
			case rules.MatchSet:
				return s.Set == set
			case rules.Verdict:
				return chains[s.Chain]
			}
			return false
		})
	})
}

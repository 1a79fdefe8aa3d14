package nftables

import (
	"maps"
	"net/netip"
	"slices"

	rules "github.com/proxyc/proxyc/render/nftables"
)

// difference compares actual with wanted state, for one change and for all. It returns the changes
// from have to want, which are whole tables or the same part of both:
//
//	caller          have                             want
//	compareTables   a table that was read            the whole table
//	PlanChanges     what Lowerer.Change returns      the same
//
// It compares sets and chains by name, and elements by key. Elements that were read as
// expected are in neither: see state.unmatched.
func difference(have, want *rules.Ruleset) *change {
	c := &change{family: want.Family, owners: ownersIn(have)}
	c.compareSets(have, want)
	c.compareChains(have, want)
	c.findPurges(have, want)
	return c
}

func (c *change) compareSets(have, want *rules.Ruleset) {
	old := setsByName(have)
	for i := range want.Sets {
		w := &want.Sets[i]
		h := old[w.Name]
		delete(old, w.Name)
		if h == nil {
			c.sets.create = append(c.sets.create, w)
			h = &rules.Set{}
		}
		if grows(h, w) {
			c.sets.resize = append(c.sets.resize, resize{w, h.Size})
		}
		c.addElements(compareElements(h, w))
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		c.sets.removed = append(c.sets.removed, old[name])
	}
}

// grows reports whether a set is too small. Sets never shrink, since they may contain too many
// elements for that.
func grows(have, want *rules.Set) bool { return have.Size > 0 && have.Size < want.Size }

func (c *change) addElements(e elementChange) {
	if len(e.removed)+len(e.added) > 0 || e.flush {
		c.sets.elements = append(c.sets.elements, e)
	}
}

// compareElements returns the changes from the elements of have to those of want. It ignores
// elements that rules add.
func compareElements(have, want *rules.Set) elementChange {
	e := elementChange{set: want, flush: have.Foreign}
	if e.flush {
		e.all = want.Elements
	}
	if len(have.Elements) == 0 {
		e.added = want.Elements
		return e
	}
	removed, added := unequal(want, have.Elements, want.Elements)
	old := make(map[rules.Key]*rules.Element, len(removed))
	for _, h := range removed {
		old[h.Key] = h
	}
	for _, w := range added {
		h := old[w.Key]
		delete(old, w.Key)
		switch {
		case h == nil:
			e.added = append(e.added, *w)
		case !sameElement(want, h, w):
			e.removed, e.added = append(e.removed, *h), append(e.added, *w)
		}
	}
	for _, h := range removed {
		if old[h.Key] != nil {
			e.removed = append(e.removed, *h)
		}
	}
	return e
}

// unequal skips equal elements of two lists in the same order, in which single elements may be missing.
// After a longer gap it returns the rest of both: what was read is in another order, and the first of
// two equal keys must be compared first.
func unequal(s *rules.Set, have, want []rules.Element) (h, w []*rules.Element) {
	for aligned := true; aligned && len(have) > 0 && len(want) > 0; {
		switch a, b := &have[0], &want[0]; {
		case a.Key == b.Key:
			if !sameElement(s, a, b) {
				h, w = append(h, a), append(w, b)
			}
			have, want = have[1:], want[1:]
		case len(have) > 1 && have[1].Key == b.Key:
			h, have = append(h, a), have[1:]
		case len(want) > 1 && want[1].Key == a.Key:
			w, want = append(w, b), want[1:]
		default:
			aligned = false
		}
	}
	for i := range have {
		h = append(h, &have[i])
	}
	for i := range want {
		w = append(w, &want[i])
	}
	return h, w
}

// sameElement reports whether h, in the kernel, equals w.
func sameElement(s *rules.Set, h, w *rules.Element) bool {
	return h.Verdict == w.Verdict && h.To == w.To && (h.Frontend == w.Frontend || s.Comment(h) == s.Comment(w))
}

func (c *change) compareChains(have, want *rules.Ruleset) {
	old := chainsByName(have)
	for i := range want.Chains {
		w := &want.Chains[i]
		h := old[w.Name]
		delete(old, w.Name)
		switch {
		case h == nil:
			c.chains.create, c.chains.fill = append(c.chains.create, w), append(c.chains.fill, w)
		case !h.SameRules(w, want.Family):
			c.chains.flush, c.chains.fill = append(c.chains.flush, h), append(c.chains.fill, w)
		}
		if h != nil && h.Base != nil && h.Base.Drop {
			c.chains.policy = append(c.chains.policy, w)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		c.chains.removed = append(c.chains.removed, old[name])
	}
}

func setsByName(r *rules.Ruleset) map[string]*rules.Set {
	return byName(r.Sets, func(s *rules.Set) string { return s.Name })
}

func chainsByName(r *rules.Ruleset) map[string]*rules.Chain {
	return byName(r.Chains, func(c *rules.Chain) string { return c.Name })
}

func byName[T any](all []T, name func(*T) string) map[string]*T {
	m := make(map[string]*T, len(all))
	for i := range all {
		m[name(&all[i])] = &all[i]
	}
	return m
}

// findPurges finds the remaining affinity maps whose pools lose a backend. Their entries for it are
// removed. Other unknown backends in a map were added by another program.
func (c *change) findPurges(have, want *rules.Ruleset) {
	var old map[string]*rules.Set
	var before, after map[string]map[netip.Addr]struct{}
	for i := range want.Sets {
		s := &want.Sets[i]
		if s.Timeout == 0 {
			continue
		}
		if old == nil {
			old, before, after = setsByName(have), remembered(have), remembered(want)
		}
		h := old[s.Name]
		if h == nil {
			continue
		}
		p := purge{set: s, keep: after[s.Name]}
		loses := false
		for a := range before[s.Name] {
			_, kept := p.keep[a]
			loses = loses || !kept
		}
		for _, a := range h.Remembered {
			_, kept := p.keep[a]
			if _, was := before[s.Name][a]; !kept && !was {
				p.foreign = append(p.foreign, a)
			}
		}
		if loses || len(p.foreign) > 0 {
			c.purge = append(c.purge, p)
		}
	}
}

// remembered returns the backends that rules add, by affinity map.
func remembered(r *rules.Ruleset) map[string]map[netip.Addr]struct{} {
	mapsOf := map[string][]string{} // chain, or set of members → maps to which rules add them
	for i := range r.Chains {
		updates(&r.Chains[i], mapsOf)
	}
	all := map[string]map[netip.Addr]struct{}{}
	for i := range r.Sets {
		s := &r.Sets[i]
		byFrontend := s.Name == rules.AffinityIPs.String() || s.Name == rules.AffinityPorts.String()
		if !byFrontend && mapsOf[s.Name] == nil {
			continue
		}
		for _, e := range s.Elements {
			by := s.Name
			if byFrontend {
				by = e.Verdict.Chain
			}
			for _, name := range mapsOf[by] {
				if all[name] == nil {
					all[name] = map[netip.Addr]struct{}{}
				}
				all[name][e.Key.Addr] = struct{}{}
			}
		}
	}
	return all
}

// updates adds the maps to which a chain adds elements, by its name, or by the set that limits them.
func updates(c *rules.Chain, mapsOf map[string][]string) {
	for _, r := range c.Rules {
		by := c.Name
		for _, s := range r.Stmts {
			switch s := s.(type) {
			case rules.MatchSet:
				by = s.Set
			case rules.Update:
				mapsOf[by] = append(mapsOf[by], s.Map)
			}
		}
	}
}

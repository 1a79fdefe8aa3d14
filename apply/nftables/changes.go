package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// planChanges plans the changes of a Delta. It reads nothing, and its cost does not depend on the
// other Services.
func planChanges(delta *rules.Delta) *change { return difference(portion(delta)) }

// portion returns the part of a table that a Delta changes, as it was applied and as it is
// wanted. Both omit equal elements that are cheap to find.
func portion(delta *rules.Delta) (have, want *rules.Ruleset) {
	have, want = &rules.Ruleset{Family: delta.Family}, &rules.Ruleset{Family: delta.Family}
	have.Chains = values(delta.RemovedChains, delta.Rewritten)
	want.Chains = values(delta.AddedChains, delta.Rules)
	old, now := delta.Removed, delta.Added // of shared sets
	for i := range delta.Ports {
		s := &delta.Ports[i]
		for id := range old {
			if !slices.Contains(rules.SharedSets(), rules.SetID(id)) {
				o, n := trimEqual(rules.SetID(id), s.Old.Elements[id], s.New.Elements[id])
				old[id], now[id] = join(old[id], o), join(now[id], n)
			}
		}
	}
	used := 0
	for id := range old {
		used += min(1, len(old[id])+len(now[id]))
	}
	have.Sets, want.Sets = make([]rules.Set, 0, used+len(delta.RemovedLists)), make([]rules.Set, 0, used+len(delta.AddedLists))
	for id := range old {
		if len(old[id])+len(now[id]) > 0 {
			s := *rules.SetID(id).Set()
			s.Elements = old[id]
			have.Sets = append(have.Sets, s)
			s.Elements = now[id]
			want.Sets = append(want.Sets, s)
		}
	}
	for _, s := range delta.RemovedLists {
		have.Sets = append(have.Sets, *s)
	}
	for _, s := range delta.AddedLists {
		want.Sets = append(want.Sets, *s)
	}
	for i := range delta.Ports {
		s := &delta.Ports[i]
		have.Sets, want.Sets = append(have.Sets, s.Old.Maps...), append(want.Sets, s.New.Maps...)
		addOwnChains(s, have, want)
	}
	return have, want
}

// values returns the chains of both lists.
func values(a, b []*rules.Chain) []rules.Chain {
	all := make([]rules.Chain, 0, len(a)+len(b))
	for _, list := range [...][]*rules.Chain{a, b} {
		for _, c := range list {
			all = append(all, *c)
		}
	}
	return all
}

// addOwnChains adds the port's own chains that it had and still has. A Delta lists those
// that it gets or loses. Shared chains with one name have the same rules.
func addOwnChains(s *rules.PortDelta, have, want *rules.Ruleset) {
	for i := range s.New.Chains {
		c := &s.New.Chains[i]
		if c.Port == (ir.ServicePort{}) {
			continue
		}
		if j := slices.IndexFunc(s.Old.Chains, func(o rules.Chain) bool { return o.Name == c.Name }); j >= 0 {
			have.Chains, want.Chains = append(have.Chains, s.Old.Chains[j]), append(want.Chains, *c)
		}
	}
}

// trimEqual returns the elements of one port in one set without those that are equal at
// both ends, which are nearly all. It keeps those that affect affinity maps.
func trimEqual(id rules.SetID, old, now []rules.Element) (o, n []rules.Element) {
	if !fingerprinted(id) || len(old) == 0 || len(now) == 0 {
		return old, now
	}
	set := id.Set()
	same := func(a, b *rules.Element) bool { return a.Key == b.Key && sameElement(set, a, b) }
	for len(old) > 0 && len(now) > 0 && same(&old[0], &now[0]) {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && same(&old[len(old)-1], &now[len(now)-1]) {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	return old, now
}

// join is append that never writes into the array of one port.
func join(all, more []rules.Element) []rules.Element {
	if len(all) == 0 {
		return slices.Clip(more)
	}
	return append(all, more...)
}

package iptables

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Plan is the difference between the actual and the desired tables, in both families. It may be
// limited to some chains.
type Plan struct {
	families   ir.PerFamily[*familyPlan]
	have, want rules.Rulesets // for reverting, and for a retry without refused Services

	desired apply.Desired
}

type familyPlan struct {
	have, want *rules.Ruleset
	tables     []tableDiff // filter, nat
	size       [2]int      // final number of rules in the complete tables
}

// tableDiff is the changes in one table.
type tableDiff struct {
	name                     string
	have                     map[string]*rules.Chain
	set                      []*rules.Chain      // new and changed chains, targets of jumps first
	fill                     []fill              // rules for chains that are shared with the kubelet
	removedJumps, addedJumps []rules.BuiltInJump // in the order of evaluation
	stale                    []*rules.Chain      // to remove, jumping chains before their targets
	wake                     bool                // the table is dormant; wake it last
}

// fill is a rule to append to a chain that keeps its rules.
type fill struct {
	chain string
	rule  *rules.Rule
}

func (d *tableDiff) empty() bool {
	return len(d.set)+len(d.fill)+len(d.removedJumps)+len(d.addedJumps)+len(d.stale) == 0
}

// newPlan compares two states family by family.
func newPlan(have, want rules.Rulesets) *Plan {
	p := &Plan{have: have, want: want}
	for f, w := range ir.Present(want.PerFamily) {
		*p.families.At(f) = planFamily(family(have, f), w)
	}
	return p
}

// sized returns the Plan with the final numbers of rules of each family. They exceed those in the
// Plan if it is limited to some chains.
func (p *Plan) sized(sizes ir.PerFamily[[2]int]) *Plan {
	for f, of := range ir.Present(p.families) {
		of.size = sizes.Of(f)
	}
	return p
}

// differing removes equal chains from both states.
func differing(have, want *rules.Ruleset) (h, w *rules.Ruleset) {
	old, now := *have, *want
	hs, ws := old.Tables(), now.Tables()
	for i, t := range ws {
		unchanged := map[string]bool{}
		existing := chainsOf(hs[i])
		for _, c := range t.Chains {
			// A chain that is shared with the kubelet may always lack a rule.
			if h := existing[c.Name]; h != nil && !rules.Shared(c.Name) && same(h.Rules, c.Rules) {
				unchanged[c.Name] = true
			}
		}
		differs := func(name string) bool { return !unchanged[name] }
		hs[i].Chains, t.Chains = only(hs[i].Chains, differs), only(t.Chains, differs)
	}
	return &old, &now
}

// agree removes the chains of a table that differ in other. If the jumps differ, it sets the present ones.
func agree(t, other *rules.Table, jumps []rules.BuiltInJump) {
	chains := chainsOf(other)
	t.Chains = slices.DeleteFunc(t.Chains, func(c rules.Chain) bool { return chains[c.Name] == nil || !same(c.Rules, chains[c.Name].Rules) })
	if !slices.EqualFunc(t.Jumps, other.Jumps, equalJump) {
		t.Jumps = jumps
	}
}

// sharedChains returns have with the chains of want that no Service decides.
func sharedChains(have, want []rules.Chain) (all []rules.Chain) {
	decided := func(r rules.Rule) bool {
		return r.Service() != (ir.Name{}) && (r.Dst.IsValid() || r.Ports != rules.PortRange{}) || r.Target == rules.Jump && (rules.OfService(r.Chain) || rules.OnlyOurs(r.Chain))
	}
	fixed := map[string]*rules.Chain{}
	for i := range want {
		if c := &want[i]; !rules.OfService(c.Name) && !rules.OnlyOurs(c.Name) {
			fixed[c.Name] = c
		}
	}
	for _, c := range have {
		if w := fixed[c.Name]; w != nil {
			delete(fixed, c.Name)
			if slices.ContainsFunc(slices.Concat(c.Rules, w.Rules), decided) {
				c.Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(r rules.Rule) bool {
					return !decided(r) && !slices.ContainsFunc(w.Rules, func(o rules.Rule) bool { return o.Equal(&r) })
				})
			} else {
				c = *w
			}
		}
		all = append(all, c)
	}
	return append(all, only(want, func(name string) bool { return fixed[name] != nil })...)
}

// only returns some chains in a new slice.
func only(chains []rules.Chain, keep func(name string) bool) []rules.Chain {
	return slices.DeleteFunc(slices.Clone(chains), func(c rules.Chain) bool { return !keep(c.Name) })
}

// planFamily compares the tables of a family.
func planFamily(have, want *rules.Ruleset) *familyPlan {
	return &familyPlan{have: have, want: want, size: want.Size(), tables: []tableDiff{
		diffTable(&have.Filter, &want.Filter), diffTable(&have.Nat, &want.Nat),
	}}
}

// within restricts sets to the chains of the Plan.
func (p *Plan) within(sets rules.Rulesets) (some rules.Rulesets) {
	for of, f := range ir.Present(p.families) {
		r := *family(sets, of)
		for i, t := range r.Tables() {
			wanted := chainsOf(f.want.Tables()[i])
			t.Chains = only(t.Chains, func(name string) bool { return f.tables[i].have[name] != nil || wanted[name] != nil })
		}
		*some.At(of) = &r
	}
	return some
}

// family returns the state of a family, or an empty one.
func family(sets rules.Rulesets, f ir.Family) *rules.Ruleset {
	if r := sets.Of(f); r != nil {
		return r
	}
	return &rules.Ruleset{Family: f, Filter: rules.Table{Name: "filter"}, Nat: rules.Table{Name: "nat"}}
}

// staleChains returns the chains of a family to remove, as "TABLE CHAIN".
func (p *Plan) staleChains(f ir.Family) (chains []string) {
	for _, d := range p.families.Of(f).tables {
		for _, c := range d.stale {
			chains = append(chains, d.name+" "+c.Name)
		}
	}
	return chains
}

// Empty reports whether the Plan has no changes.
func (p *Plan) Empty() bool {
	for _, f := range ir.Present(p.families) {
		for i := range f.tables {
			if d := &f.tables[i]; !d.empty() || d.wake {
				return false
			}
		}
	}
	return true
}

// RemovedFrontends returns the frontends that exist and that the Plan removes.
func (p *Plan) RemovedFrontends() []ir.Match {
	var removed []ir.Match
	for _, f := range ir.Present(p.families) {
		stay := sets.New(f.want.Frontends()...)
		removed = append(removed, slices.DeleteFunc(f.have.Frontends(), stay.Has)...)
	}
	slices.SortFunc(removed, ir.Match.Compare)
	return slices.Compact(removed)
}

func diffTable(have, want *rules.Table) tableDiff {
	d := tableDiff{name: want.Name, have: chainsOf(have), wake: have.Dormant}
	wanted := make(map[string]bool, len(want.Chains))
	for i := range want.Chains {
		c := &want.Chains[i]
		wanted[c.Name] = true
		h, exists := d.have[c.Name]
		switch {
		case exists && rules.Shared(c.Name):
			d.fill = append(d.fill, missing(h, c)...)
		case !exists || !same(h.Rules, c.Rules):
			d.set = append(d.set, c)
		}
	}
	pinned := d.pinned(have)
	for i := range have.Chains {
		if c := &have.Chains[i]; !wanted[c.Name] && !rules.Shared(c.Name) && !pinned[c.Name] {
			d.stale = append(d.stale, c)
		}
	}
	d.set, d.stale = targetsFirst(d.set), targetsFirst(d.stale)
	slices.Reverse(d.stale)
	d.removedJumps, d.addedJumps = diffJumps(have.Jumps, want.Jumps)
	return d
}

// pinned returns the chains that foreign rules jump to, with those that they jump to. They cannot
// be removed.
func (d *tableDiff) pinned(have *rules.Table) map[string]bool {
	stay := map[string]bool{}
	for todo := slices.Clone(have.Pinned); len(todo) > 0; {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		c := d.have[name]
		if stay[name] || c == nil {
			continue
		}
		stay[name] = true
		for i := range c.Rules {
			if c.Rules[i].Target == rules.Jump {
				todo = append(todo, c.Rules[i].Chain)
			}
		}
	}
	return stay
}

// same reports whether two chains have equal rules. It is fast if they share them.
func same(a, b []rules.Rule) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, equal)
}

func equal(a, b rules.Rule) bool { return a.Equal(&b) }

func chainsOf(t *rules.Table) map[string]*rules.Chain {
	m := make(map[string]*rules.Chain, len(t.Chains))
	for i := range t.Chains {
		m[t.Chains[i].Name] = &t.Chains[i]
	}
	return m
}

// missing returns the rules of want that are not in have.
func missing(have, want *rules.Chain) []fill {
	var fills []fill
	for i := range want.Rules {
		r := &want.Rules[i]
		if !slices.ContainsFunc(have.Rules, func(h rules.Rule) bool { return h.Equal(r) }) {
			fills = append(fills, fill{want.Name, r})
		}
	}
	return fills
}

// targetsFirst orders chains so that targets of jumps come before the chains that jump to them.
// Other targets are irrelevant, since unchanged chains jump to existing ones.
func targetsFirst(chains []*rules.Chain) []*rules.Chain {
	byName := make(map[string]*rules.Chain, len(chains))
	for _, c := range chains {
		byName[c.Name] = c
	}
	out := make([]*rules.Chain, 0, len(chains))
	var visit func(c *rules.Chain)
	visit = func(c *rules.Chain) {
		delete(byName, c.Name)
		for i := range c.Rules {
			if to := byName[c.Rules[i].Chain]; to != nil && c.Rules[i].Target == rules.Jump {
				visit(to)
			}
		}
		out = append(out, c)
	}
	for _, c := range chains {
		if byName[c.Name] != nil {
			visit(c)
		}
	}
	return out
}

// diffJumps returns the jumps to remove from built-in chains and those to add. If the jumps of a
// built-in chain or their order differ, all are replaced. Jumps to shared chains are added if they
// are missing, and otherwise kept.
func diffJumps(have, want []rules.BuiltInJump) (removedJumps, addedJumps []rules.BuiltInJump) {
	for _, builtIn := range rules.BuiltInChains() {
		h, hShared := jumpsOf(have, builtIn)
		w, wShared := jumpsOf(want, builtIn)
		addedJumps = append(addedJumps, slices.DeleteFunc(wShared, func(s rules.BuiltInJump) bool { return hasJump(hShared, s) })...)
		if !slices.EqualFunc(h, w, equalJump) {
			removedJumps, addedJumps = append(removedJumps, h...), append(addedJumps, w...)
		}
	}
	return removedJumps, addedJumps
}

func hasJump(jumps []rules.BuiltInJump, j rules.BuiltInJump) bool {
	return slices.ContainsFunc(jumps, func(o rules.BuiltInJump) bool { return equalJump(o, j) })
}

func equalJump(a, b rules.BuiltInJump) bool { return a.Chain == b.Chain && a.Rule.Equal(&b.Rule) }

func jumpsOf(jumps []rules.BuiltInJump, builtIn string) (own, shared []rules.BuiltInJump) {
	for _, h := range jumps {
		switch {
		case h.Chain != builtIn:
		case rules.Shared(h.Rule.Chain):
			shared = append(shared, h)
		default:
			own = append(own, h)
		}
	}
	return own, shared
}

// diffRules returns the rules that only one side has.
func diffRules(have, want []rules.Rule) (added, removed []*rules.Rule) {
	count := make(map[rules.Rule]int, len(have))
	for i := range have {
		count[have[i].Key()]++
	}
	for i := range want {
		k := want[i].Key()
		if count[k]--; count[k] < 0 {
			added = append(added, &want[i])
		}
	}
	for i := range have {
		k := have[i].Key()
		if count[k] > 0 {
			count[k]--
			removed = append(removed, &have[i])
		}
	}
	return added, removed
}

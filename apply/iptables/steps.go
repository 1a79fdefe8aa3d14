package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// step is one run of iptables-restore. The kernel takes each of its edits
// whole, one after the other.
type step []edit

// edit is what a step does to a table, in this order.
type edit struct {
	table  string
	set    []*rules.Chain // emptied or made, and filled
	fill   []fill
	unhook []rules.Hook
	hook   []rules.Hook
	drop   []*rules.Chain
}

// steps divides what a family needs into runs of at most most rules. A small
// change is one run. In larger ones each stage goes through its chains in
// their order and ends with the jumps; what is stale is dropped after that.
func (f *familyPlan) steps(most int) []step {
	size := 0
	for i := range f.tables {
		size += f.tables[i].size()
	}
	var all []step
	if size > most {
		for _, d := range f.stages(true) {
			all = append(all, d.steps(most)...)
		}
		return all
	}
	var whole step
	for _, d := range f.stages(false) {
		if !d.empty() {
			whole = append(whole, edit{d.name, d.set, d.fill, d.unhook, d.hook, d.stale})
		}
	}
	if len(whole) == 0 {
		return nil
	}
	return []step{whole}
}

// stages are the changes of the tables one after the other. A frontend whose
// last backend goes is refused before it is not translated any longer, and one
// that gets its first is translated before it is not refused any longer: so
// filter changes around nat, and holds the old and the new rules in between.
// If nat changes in several runs, hairpin connections are treated likewise.
func (f *familyPlan) stages(severalRuns bool) []tableDiff {
	filter := union(&f.have.Filter, &f.want.Filter, func(string) bool { return true })
	first, last := diffTable(&f.have.Filter, filter), diffTable(filter, &f.want.Filter)
	if !severalRuns {
		return []tableDiff{first, f.tables[1], last}
	}
	nat := union(&f.have.Nat, &f.want.Nat, rules.Hairpin)
	return []tableDiff{first, diffTable(&f.have.Nat, nat), diffTable(nat, &f.want.Nat), last}
}

// union is want with what only have has in some chains: these chains if they
// are stale, with those they jump to, and rules at their end, where they catch
// what want leaves.
func union(have, want *rules.Table, some func(chain string) bool) *rules.Table {
	u := &rules.Table{Name: want.Name, Hooks: want.Hooks}
	old := chainsOf(have)
	for _, c := range want.Chains {
		if h := old[c.Name]; h != nil && some(c.Name) && !rules.Shared(c.Name) && !same(h.Rules, c.Rules) {
			c = both(h, c)
		}
		u.Chains = append(u.Chains, c)
		delete(old, c.Name)
	}
	keep := func(name string) {
		if c := old[name]; c != nil {
			u.Chains = append(u.Chains, *c)
			delete(old, name)
		}
	}
	for _, c := range have.Chains {
		if some(c.Name) {
			keep(c.Name)
		}
	}
	for i := 0; i < len(u.Chains); i++ {
		for _, r := range u.Chains[i].Rules {
			if r.Target == rules.Jump {
				keep(r.Chain)
			}
		}
	}
	return u
}

// both is a chain with the rules of two. It is have if want adds nothing.
func both(have *rules.Chain, want rules.Chain) rules.Chain {
	added, removed := diffRules(have.Rules, want.Rules)
	if len(added) == 0 && len(removed) > 0 {
		return *have
	}
	rs := slices.Clone(want.Rules)
	for _, r := range removed {
		rs = append(rs, *r)
	}
	return rules.Chain{Name: want.Name, Rules: rs}
}

// size is what a change costs: the rules that are written, and a little for each chain.
func (d *tableDiff) size() int {
	n := len(d.stale)
	for _, c := range d.set {
		n += weight(c)
	}
	return n
}

// weight is what a chain costs in a step: its rules and itself.
func weight(c *rules.Chain) int { return len(c.Rules) + 1 }

func (d *tableDiff) steps(most int) []step {
	var all []step
	for rest := d.set; len(rest) > 0; {
		n, size := 1, weight(rest[0])
		for n < len(rest) && size+weight(rest[n]) <= most {
			size += weight(rest[n])
			n++
		}
		all = append(all, step{{table: d.name, set: rest[:n]}})
		rest = rest[n:]
	}
	if len(d.fill)+len(d.unhook)+len(d.hook) > 0 {
		if len(all) == 0 {
			all = []step{{{table: d.name}}}
		}
		last := &all[len(all)-1][0]
		last.fill, last.unhook, last.hook = d.fill, d.unhook, d.hook
	}
	for stale := range slices.Chunk(d.stale, most) {
		all = append(all, step{{table: d.name, drop: stale}})
	}
	return all
}

// lineLength is about how long a rule is, at most on average, in bytes.
const lineLength = 128

// size is how many lines the text has, at most.
func (s step) size() int {
	lines := 0
	for _, e := range s {
		lines += 2 + len(e.fill) + len(e.unhook) + len(e.hook) + 2*len(e.drop)
		for _, c := range e.set {
			lines += weight(c)
		}
	}
	return lines
}

// text is the input of iptables-restore --noflush. Declaring a chain empties it.
func (s step) text(f ir.Family) []byte {
	b := make([]byte, 0, s.size()*lineLength)
	line := func(verb, chain string, r *rules.Rule) {
		b = append(append(append(b, verb...), chain...), ' ')
		b = append(r.Append(b, f), '\n')
	}
	for _, e := range s {
		b = append(append(append(b, '*'), e.table...), '\n')
		for _, c := range e.set {
			b = append(append(append(b, ':'), c.Name...), " - [0:0]\n"...)
		}
		for _, c := range e.drop {
			b = append(append(append(b, ':'), c.Name...), " - [0:0]\n"...)
		}
		for _, c := range e.set {
			for i := range c.Rules {
				line("-A ", c.Name, &c.Rules[i])
			}
		}
		for _, a := range e.fill {
			line("-A ", a.chain, a.rule)
		}
		for _, h := range e.unhook {
			if h.Text != "" { // the tool finds a rule by its text, the order of matches included
				h.Rule = rules.Rule{Raw: h.Text}
			}
			line("-D ", h.Chain, &h.Rule)
		}
		for _, h := range slices.Backward(e.hook) { // -I puts each first
			line("-I ", h.Chain, &h.Rule)
		}
		for _, c := range e.drop {
			b = append(append(append(b, "-X "...), c.Name...), '\n')
		}
		b = append(b, "COMMIT\n"...)
	}
	return b
}

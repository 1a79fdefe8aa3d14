package iptables

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// step is one run of iptables-restore. The kernel commits each of its edits atomically, in order.
type step []edit

// edit is the changes of a step to one table, in this order.
type edit struct {
	table        string
	set          []*rules.Chain // created or emptied, then filled
	fill         []fill
	removedJumps []rules.BuiltInJump
	addedJumps   []rules.BuiltInJump
	drop         []*rules.Chain
}

// steps splits the changes of a family into runs of at most limit rules. A small change is one run.
// In larger ones each stage writes its chains in order, then the jumps, and then removes obsolete
// chains.
func (f *familyPlan) steps(limit int) []step {
	size := 0
	for i := range f.tables {
		size += f.tables[i].size()
	}
	var all []step
	if size > limit {
		for _, d := range f.stages(true) {
			all = append(all, d.steps(limit)...)
		}
		return all
	}
	var whole step
	for _, d := range f.stages(false) {
		if !d.empty() {
			whole = append(whole, edit{d.name, d.set, d.fill, d.removedJumps, d.addedJumps, d.stale})
		}
	}
	if len(whole) == 0 {
		return nil
	}
	return []step{whole}
}

// stages returns consecutive changes of the tables. A frontend whose last backend is removed has to
// be rejected before it is no longer translated. One that gets its first backend has to be
// translated before it is no longer rejected. Filter is therefore changed before and after nat, and
// contains the old and the new rules in between. If nat changes in several runs, the same applies
// to hairpin connections.
func (f *familyPlan) stages(severalRuns bool) []tableDiff {
	filter := union(&f.have.Filter, &f.want.Filter, func(string) bool { return true })
	first, last := diffTable(&f.have.Filter, filter), diffTable(filter, &f.want.Filter)
	if !severalRuns {
		return []tableDiff{first, f.tables[1], last}
	}
	nat := union(&f.have.Nat, &f.want.Nat, rules.Hairpin)
	return []tableDiff{first, diffTable(&f.have.Nat, nat), diffTable(nat, &f.want.Nat), last}
}

// union returns want with parts of some chains of have: obsolete chains with their targets, and
// obsolete rules at the end, where they match what want does not.
func union(have, want *rules.Table, some func(chain string) bool) *rules.Table {
	u := &rules.Table{Name: want.Name, Jumps: want.Jumps}
	old := chainsOf(have)
	for _, c := range want.Chains {
		if h := old[c.Name]; h != nil && some(c.Name) && !rules.Shared(c.Name) && !same(h.Rules, c.Rules) {
			c = mergeChain(h, c)
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

// mergeChain returns a chain with the rules of two. It returns have if want adds nothing.
func mergeChain(have *rules.Chain, want rules.Chain) rules.Chain {
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

// size returns the cost of a change: the written rules, plus one per chain.
func (d *tableDiff) size() int {
	n := len(d.stale)
	for _, c := range d.set {
		n += weight(c)
	}
	return n
}

// weight returns the cost of a chain in a step.
func weight(c *rules.Chain) int { return len(c.Rules) + 1 }

func (d *tableDiff) steps(limit int) []step {
	var all []step
	for rest := d.set; len(rest) > 0; {
		n, size := 1, weight(rest[0])
		for n < len(rest) && size+weight(rest[n]) <= limit {
			size += weight(rest[n])
			n++
		}
		all = append(all, step{{table: d.name, set: rest[:n]}})
		rest = rest[n:]
	}
	if len(d.fill)+len(d.removedJumps)+len(d.addedJumps) > 0 {
		if len(all) == 0 {
			all = []step{{{table: d.name}}}
		}
		last := &all[len(all)-1][0]
		last.fill, last.removedJumps, last.addedJumps = d.fill, d.removedJumps, d.addedJumps
	}
	for stale := range slices.Chunk(d.stale, limit) {
		all = append(all, step{{table: d.name, drop: stale}})
	}
	return all
}

// input writes the input of iptables-restore. It may be called repeatedly, and streams the input
// instead of holding it.
type input func(io.Writer) error

func literal(text []byte) input {
	return func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
}

// text returns the complete input.
func (in input) text() []byte {
	var b bytes.Buffer
	in(&b) // a Buffer does not fail
	return b.Bytes()
}

// input returns the input of iptables-restore --noflush. Declaring a chain empties it.
func (s step) input(f ir.Family) input {
	return func(out io.Writer) error {
		w := &writer{Writer: bufio.NewWriterSize(out, 1<<16), family: f}
		for _, e := range s {
			w.edit(&e)
		}
		return w.Flush()
	}
}

// writer writes rules. Its first error is returned by Flush.
type writer struct {
	*bufio.Writer
	family ir.Family
	line   []byte
}

func (w *writer) edit(e *edit) {
	// The legacy tool sorts chains by name, and is fastest with sorted input.
	set := slices.Clone(e.set)
	slices.SortFunc(set, func(a, b *rules.Chain) int { return strings.Compare(a.Name, b.Name) })
	w.words("*", e.table, "")
	for _, c := range set {
		w.words(":", c.Name, " - [0:0]")
	}
	for _, c := range e.drop {
		w.words(":", c.Name, " - [0:0]")
	}
	for _, c := range set {
		for i := range c.Rules {
			w.rule("-A ", c.Name, &c.Rules[i])
		}
	}
	for _, a := range e.fill {
		w.rule("-A ", a.chain, a.rule)
	}
	for _, h := range e.removedJumps {
		if h.Text != "" { // the tool finds a rule by its text, including the order of matches
			h.Rule = rules.Rule{Raw: h.Text}
		}
		w.rule("-D ", h.Chain, &h.Rule)
	}
	for _, h := range slices.Backward(e.addedJumps) { // -I inserts at the top
		w.rule("-I ", h.Chain, &h.Rule)
	}
	for _, c := range e.drop {
		w.words("-X ", c.Name, "")
	}
	w.words("COMMIT", "", "")
}

// words writes a line.
func (w *writer) words(a, b, c string) {
	w.line = append(append(append(append(w.line[:0], a...), b...), c...), '\n')
	w.Write(w.line)
}

func (w *writer) rule(verb, chain string, r *rules.Rule) {
	w.line = append(append(append(w.line[:0], verb...), chain...), ' ')
	w.line = append(r.Append(w.line, w.family), '\n')
	w.Write(w.line)
}

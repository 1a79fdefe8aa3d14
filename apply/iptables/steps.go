package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// step is one run of iptables-restore. The kernel takes each of its tables
// whole.
type step []edit

// edit is what a step does to a table, in this order.
type edit struct {
	table  string
	set    []*rules.Chain // emptied or made, and filled
	fill   []fill
	unhook []rules.Hook
	hook   []rules.Hook
	drop   []string
}

// steps divides what a family needs into runs of at most most rules. A small
// change is one run. In larger ones each table goes through its chains in
// their order and ends with the jumps; what is stale is dropped after that.
// filter comes before nat: what is going to be refused must not slip through.
func (f *familyPlan) steps(most int) []step {
	size := 0
	var whole step
	for i := range f.tables {
		d := &f.tables[i]
		if d.empty() {
			continue
		}
		size += len(d.stale)
		for _, c := range d.set {
			size += weight(c)
		}
		whole = append(whole, edit{d.name, d.set, d.fill, d.unhook, d.hook, d.stale})
	}
	if size <= most {
		if len(whole) == 0 {
			return nil
		}
		return []step{whole}
	}
	var all []step
	for i := range f.tables {
		all = append(all, f.tables[i].steps(most)...)
	}
	return all
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

// text is the input of iptables-restore --noflush. Declaring a chain empties it.
func (s step) text(f ir.Family) []byte {
	var b []byte
	line := func(verb, chain string, r *rules.Rule) {
		b = append(append(append(b, verb...), chain...), ' ')
		b = append(r.Append(b, f), '\n')
	}
	for _, e := range s {
		b = append(append(append(b, '*'), e.table...), '\n')
		for _, c := range e.set {
			b = append(append(append(b, ':'), c.Name...), " - [0:0]\n"...)
		}
		for _, name := range e.drop {
			b = append(append(append(b, ':'), name...), " - [0:0]\n"...)
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
		for _, name := range e.drop {
			b = append(append(append(b, "-X "...), name...), '\n')
		}
		b = append(b, "COMMIT\n"...)
	}
	return b
}

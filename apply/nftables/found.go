package nftables

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// A node that is read mostly has what it should have, and in a large cluster there is no room for that twice. So
// elements are not held that are there as they are expected: a fingerprint of each is marked.

// found is what a node has, without the elements that are marked in what was expected of it.
type found struct {
	rules.Tables
	*expected // nil: nothing was expected, and all elements are held
}

// expected is what a node is expected to have, and what it has of that.
type expected struct {
	of     ir.Programs
	prints ir.PerFamily[*prints] // nil: not asked for yet
}

// prints are fingerprints of the elements that a Program wants in the fixed sets.
type prints [len(rules.Fragment{}.Elements)]marks

// marks are those of one set.
type marks struct {
	all   []uint64 // in order
	there []bool   // which of them the node has
}

// in returns the fingerprints of a family; nil: nothing is expected.
func (e *expected) in(f ir.Family) *prints {
	if e == nil || e.of.Of(f) == nil {
		return nil
	}
	p := e.prints.At(f)
	if *p == nil {
		*p = newPrints(e.of.Of(f))
	}
	return *p
}

// unmark forgets what the node was found to have: the next reading may find less.
func (e *expected) unmark() {
	if e != nil {
		e.prints = ir.PerFamily[*prints]{}
	}
}

func newPrints(p *ir.Program) *prints {
	out := new(prints)
	rules.LowerBare(p, func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			if of := &out[id]; printed(id) {
				of.all = append(of.all, printOf(id, &elements[i]))
			}
		}
		return true
	})
	for id := range out {
		slices.Sort(out[id].all)
		out[id].there = make([]bool, len(out[id].all))
	}
	return out
}

// printed reports whether elements of a set have fingerprints. Those that say where affinity leads
// are always held: what affinity may remember is found by all of them.
func printed(id rules.SetID) bool { return id != rules.AffinityIPs && id != rules.AffinityPorts }

var seed = maphash.MakeSeed()

// printOf returns the fingerprint of all that makes an element another one for the kernel or for people. Nobody can
// aim at another element's, as the seed is chosen at random; by chance one of a million has it once in 10^13.
func printOf(id rules.SetID, e *rules.Element) uint64 {
	return maphash.Comparable(seed, struct {
		id      rules.SetID
		key     rules.Key
		verdict rules.Verdict
		to      netip.AddrPort
		comment string
	}{id, e.Key, e.Verdict, e.To, id.Comment(e)})
}

// at returns the place of an element's fingerprint; false if it has none.
func (m *marks) at(id rules.SetID, e *rules.Element) (int, bool) {
	if len(m.all) == 0 {
		return 0, false
	}
	return slices.BinarySearch(m.all, printOf(id, e))
}

// mark takes what is expected out of elements that a node has, and reports whether one of them was marked before.
func (m *marks) mark(id rules.SetID, elements []rules.Element) (others []rules.Element, again bool) {
	others = elements[:0]
	for i := range elements {
		at, ok := m.at(id, &elements[i])
		if !ok {
			others = append(others, elements[i])
			continue
		}
		again = again || m.there[at]
		m.there[at] = true
	}
	return others, again
}

// against returns what is to be compared for a Program: the table that the node has, and the one that it should have, both
// without elements that it has as it should.
func (n *found) against(f ir.Family, p *ir.Program) (have, want *rules.Ruleset) {
	have = tableIn(n.Tables, f)
	marked := n.in(f)
	if marked == nil {
		return have, rules.Lower(p)
	}
	held := make([]map[rules.Key]bool, len(marked)) // keys that the node has, to something else
	for i := range have.Sets {
		s := &have.Sets[i]
		if id, ok := fixedSet(s.Name); ok && len(s.Elements) > 0 {
			held[id] = make(map[rules.Key]bool, len(s.Elements))
			for j := range s.Elements {
				held[id][s.Elements[j].Key] = true
			}
		}
	}
	rest := new(prints) // what the node has, and the Program does not want
	for id := range marked {
		rest[id] = marks{marked[id].all, slices.Clone(marked[id].there)}
	}
	var missing [len(prints{})][]rules.Element
	want = rules.LowerBare(p, func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			e := &elements[i]
			// A key that was read with something else, too, changed while it was read.
			if at, ok := marked[id].at(id, e); ok && marked[id].there[at] && !held[id][e.Key] {
				rest[id].there[at] = false
			} else {
				missing[id] = append(missing[id], *e)
			}
		}
		return true
	})
	for id := range missing {
		want.Sets[id].Elements = missing[id]
	}
	return n.with(rest, have), want
}

// with returns the table with the elements that are marked.
func (n *found) with(marked *prints, have *rules.Ruleset) *rules.Ruleset {
	if !slices.ContainsFunc(marked[:], func(m marks) bool { return slices.Contains(m.there, true) }) {
		return have
	}
	var more [len(prints{})][]rules.Element
	rules.LowerBare(n.of.Of(have.Family), func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			if at, ok := marked[id].at(id, &elements[i]); ok && marked[id].there[at] {
				more[id] = append(more[id], elements[i])
			}
		}
		return true
	})
	all := *have
	all.Sets = slices.Clone(have.Sets)
	for i := range all.Sets {
		if id, ok := fixedSet(all.Sets[i].Name); ok {
			all.Sets[i].Elements = slices.Concat(all.Sets[i].Elements, more[id])
		}
	}
	return &all
}

// ownersOf finds the service ports of frontends by a Program, when it is first asked.
func ownersOf(p *ir.Program) func(ir.Match) ir.ServicePort {
	var byMatch map[ir.Match]ir.ServicePort
	return func(m ir.Match) ir.ServicePort {
		if byMatch == nil {
			byMatch = maps.Collect(func(yield func(ir.Match, ir.ServicePort) bool) {
				for i := range p.Services {
					for j := range p.Services[i].Frontends {
						if f := &p.Services[i].Frontends[j]; !yield(f.Match, f.Port) {
							return
						}
					}
				}
			})
		}
		return byMatch[m]
	}
}

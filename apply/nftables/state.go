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

// state is what a node has, without the elements that are marked in what was expected of it.
type state struct {
	rules.Tables
	*expected // nil: nothing was expected, and all elements are held
}

// expected is what a node is expected to have, and what it has of that.
type expected struct {
	programs     ir.Programs
	fingerprints ir.PerFamily[*fingerprints] // nil: not asked for yet
}

// fingerprints are fingerprints of the elements that a Program wants in the fixed sets.
type fingerprints [len(rules.Fragment{}.Elements)]setFingerprints

// setFingerprints are those of one set.
type setFingerprints struct {
	sums    []uint64 // in order
	present []bool   // which of them the node has
}

// ofFamily returns the fingerprints of a family; nil: nothing is expected.
func (e *expected) ofFamily(f ir.Family) *fingerprints {
	if e == nil || e.programs.Of(f) == nil {
		return nil
	}
	p := e.fingerprints.At(f)
	if *p == nil {
		*p = newFingerprints(e.programs.Of(f))
	}
	return *p
}

// reset forgets what the node was found to have: the next reading may find less.
func (e *expected) reset() {
	if e != nil {
		e.fingerprints = ir.PerFamily[*fingerprints]{}
	}
}

func newFingerprints(p *ir.Program) *fingerprints {
	out := new(fingerprints)
	rules.LowerBare(p, func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			if of := &out[id]; fingerprinted(id) {
				of.sums = append(of.sums, fingerprint(id, &elements[i]))
			}
		}
		return true
	})
	for id := range out {
		slices.Sort(out[id].sums)
		out[id].present = make([]bool, len(out[id].sums))
	}
	return out
}

// fingerprinted reports whether elements of a set have fingerprints. Those that say where affinity leads
// are always held: what affinity may remember is found by all of them.
func fingerprinted(id rules.SetID) bool { return id != rules.AffinityIPs && id != rules.AffinityPorts }

var seed = maphash.MakeSeed()

// fingerprint returns the fingerprint of all that makes an element another one for the kernel or for people. Nobody can
// aim at another element's, as the seed is chosen at random; by chance one of a million has it once in 10^13.
func fingerprint(id rules.SetID, e *rules.Element) uint64 {
	return maphash.Comparable(seed, struct {
		id      rules.SetID
		key     rules.Key
		verdict rules.Verdict
		to      netip.AddrPort
		comment string
	}{id, e.Key, e.Verdict, e.To, id.Comment(e)})
}

// index returns the place of an element's fingerprint; false if it has none.
func (m *setFingerprints) index(id rules.SetID, e *rules.Element) (int, bool) {
	if len(m.sums) == 0 {
		return 0, false
	}
	return slices.BinarySearch(m.sums, fingerprint(id, e))
}

// markPresent takes what is expected out of elements that a node has, and reports whether one of them was marked before.
func (m *setFingerprints) markPresent(id rules.SetID, elements []rules.Element) (others []rules.Element, again bool) {
	others = elements[:0]
	for i := range elements {
		at, ok := m.index(id, &elements[i])
		if !ok {
			others = append(others, elements[i])
			continue
		}
		again = again || m.present[at]
		m.present[at] = true
	}
	return others, again
}

// unmatched returns what is to be compared for a Program: the table that the node has, and the one that it should have, both
// without elements that it has as it should.
func (n *state) unmatched(f ir.Family, p *ir.Program) (have, want *rules.Ruleset) {
	have = tableIn(n.Tables, f)
	marked := n.ofFamily(f)
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
	rest := new(fingerprints) // what the node has, and the Program does not want
	for id := range marked {
		rest[id] = setFingerprints{marked[id].sums, slices.Clone(marked[id].present)}
	}
	var missing [len(fingerprints{})][]rules.Element
	want = rules.LowerBare(p, func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			e := &elements[i]
			// A key that was read with something else, too, changed while it was read.
			if at, ok := marked[id].index(id, e); ok && marked[id].present[at] && !held[id][e.Key] {
				rest[id].present[at] = false
			} else {
				missing[id] = append(missing[id], *e)
			}
		}
		return true
	})
	for id := range missing {
		want.Sets[id].Elements = missing[id]
	}
	return n.withPresent(rest, have), want
}

// withPresent returns the table with the elements that are marked.
func (n *state) withPresent(marked *fingerprints, have *rules.Ruleset) *rules.Ruleset {
	if !slices.ContainsFunc(marked[:], func(m setFingerprints) bool { return slices.Contains(m.present, true) }) {
		return have
	}
	var more [len(fingerprints{})][]rules.Element
	rules.LowerBare(n.programs.Of(have.Family), func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			if at, ok := marked[id].index(id, &elements[i]); ok && marked[id].present[at] {
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

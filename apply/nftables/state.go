package nftables

import (
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// The kernel usually matches already. To avoid holding two copies of a large cluster, only
// fingerprints of matching elements are kept.

// state is the content of the tables, without the elements that are marked in expected.
type state struct {
	rules.Tables
	*expected // nil: all elements are in Tables
}

// expected is the expected content of the tables, and marks what exists. Its methods accept nil,
// which expects nothing.
type expected struct {
	programs     ir.Programs
	fingerprints ir.PerFamily[*fingerprints] // nil until needed
}

// fingerprints are those of the elements of the fixed sets.
type fingerprints [len(rules.Fragment{}.Elements)]setFingerprints

// setFingerprints are the fingerprints of the elements of a set.
type setFingerprints struct {
	sums    []uint64 // sorted
	present []bool   // whether the kernel has the element
}

// ofFamily returns the fingerprints of a family; nil if nothing is expected.
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

// reset removes all marks, for another reading.
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

// fingerprinted reports whether elements of a set have fingerprints. Those of affinity are kept:
// all of them are needed to find the backends that affinity maps may contain.
func fingerprinted(id rules.SetID) bool { return id != rules.AffinityIPs && id != rules.AffinityPorts }

var seed = maphash.MakeSeed()

// fingerprint returns a hash of all properties of an element, including its comment. The seed is
// random, so collisions cannot be constructed. In a set of a million elements, an unexpected
// element matches by chance with a probability of 10^-13.
func fingerprint(id rules.SetID, e *rules.Element) uint64 {
	return maphash.Comparable(seed, struct {
		id      rules.SetID
		key     rules.Key
		verdict rules.Verdict
		to      netip.AddrPort
		comment string
	}{id, e.Key, e.Verdict, e.To, id.Comment(e)})
}

// index returns the index of an element's fingerprint, if it has one.
func (m *setFingerprints) index(id rules.SetID, e *rules.Element) (int, bool) {
	if len(m.sums) == 0 {
		return 0, false
	}
	return slices.BinarySearch(m.sums, fingerprint(id, e))
}

// markPresent marks expected elements, and returns the rest. repeated reports whether one was
// marked before.
func (m *setFingerprints) markPresent(id rules.SetID, elements []rules.Element) (rest []rules.Element, repeated bool) {
	rest = elements[:0]
	for i := range elements {
		at, ok := m.index(id, &elements[i])
		if !ok {
			rest = append(rest, elements[i])
			continue
		}
		repeated = repeated || m.present[at]
		m.present[at] = true
	}
	return rest, repeated
}

// unmatched returns the actual and the wanted table for a Program. Both omit the elements that
// exist as expected.
func (n *state) unmatched(f ir.Family, p *ir.Program) (have, want *rules.Ruleset) {
	have = tableIn(n.Tables, f)
	marked := n.ofFamily(f)
	if marked == nil {
		return have, rules.Lower(p)
	}
	differing := make([]map[rules.Key]bool, len(marked)) // keys of elements that differ
	for i := range have.Sets {
		s := &have.Sets[i]
		if id, ok := fixedSet(s.Name); ok && len(s.Elements) > 0 {
			differing[id] = make(map[rules.Key]bool, len(s.Elements))
			for j := range s.Elements {
				differing[id][s.Elements[j].Key] = true
			}
		}
	}
	rest := new(fingerprints) // existing elements that the Program does not require
	for id := range marked {
		rest[id] = setFingerprints{marked[id].sums, slices.Clone(marked[id].present)}
	}
	var missing [len(fingerprints{})][]rules.Element
	want = rules.LowerBare(p, func(id rules.SetID, elements []rules.Element) bool {
		for i := range elements {
			e := &elements[i]
			// An element whose key was also read with other data changed during the reading.
			if at, ok := marked[id].index(id, e); ok && marked[id].present[at] && !differing[id][e.Key] {
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

// withPresent returns the table with the marked elements.
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

// ownersOf returns a function that finds the service ports of frontends in a Program.
func ownersOf(p *ir.Program) func(ir.Match) ir.ServicePort {
	var byMatch map[ir.Match]ir.ServicePort // nil until needed
	return func(m ir.Match) ir.ServicePort {
		if byMatch == nil {
			byMatch = map[ir.Match]ir.ServicePort{}
			for i := range p.Services {
				for _, f := range p.Services[i].Frontends {
					byMatch[f.Match] = f.Port
				}
			}
		}
		return byMatch[m]
	}
}

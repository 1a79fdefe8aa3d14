package sim

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Prefixes is an immutable set of equivalent source prefixes with fast lookup.
type Prefixes struct {
	all   []netip.Prefix
	outer []netip.Prefix // those not contained in others, sorted
}

// NewPrefixes returns the Prefixes of a list, which must not be changed
// afterwards.
func NewPrefixes(list []netip.Prefix) *Prefixes {
	p := &Prefixes{all: list}
	for _, one := range slices.SortedFunc(slices.Values(list), func(a, b netip.Prefix) int {
		return cmp.Or(a.Masked().Addr().Compare(b.Masked().Addr()), cmp.Compare(a.Bits(), b.Bits()))
	}) {
		if n := len(p.outer); n == 0 || !p.outer[n-1].Contains(one.Addr()) {
			p.outer = append(p.outer, one)
		}
	}
	return p
}

// Find returns the widest prefix that contains a source, and records a comparison
// with all prefixes.
func (p *Prefixes) Find(src netip.Addr, cuts *Cuts) (prefix netip.Prefix, ok bool) {
	cuts.SourcesOf(p.all)
	i, found := slices.BinarySearchFunc(p.outer, src, func(one netip.Prefix, src netip.Addr) int { return one.Masked().Addr().Compare(src) })
	if !found {
		i--
	}
	if i < 0 || !p.outer[i].Contains(src) {
		return netip.Prefix{}, false
	}
	return p.outer[i], true
}

// rangesKey identifies a list of source ranges, which frontends share.
type rangesKey struct {
	first *ir.SourceRange
	n     int
}

// rangesOf returns the source ranges of a frontend, which must have some.
func (e *Evaluator) rangesOf(f *ir.Frontend) *Prefixes {
	key := rangesKey{&f.SourceRanges[0], len(f.SourceRanges)}
	if known, ok := e.ranges.Load(key); ok {
		return known.(*Prefixes)
	}
	list := make([]netip.Prefix, len(f.SourceRanges))
	for i, r := range f.SourceRanges {
		list[i] = r.Prefix
	}
	known, _ := e.ranges.LoadOrStore(key, NewPrefixes(list))
	return known.(*Prefixes)
}

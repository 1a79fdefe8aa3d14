package flow

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
)

// ranges are sorted addresses of one family, without overlapping or adjacent
// entries.
type ranges []prove.Addrs

// newRanges sorts and merges ranges.
func newRanges(all []prove.Addrs) ranges {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b prove.Addrs) int { return a.First.Compare(b.First) })
	var out ranges
	for _, r := range all {
		if n := len(out); n > 0 {
			if next := out[n-1].Last.Next(); !next.IsValid() || next.Compare(r.First) >= 0 {
				if r.Last.Compare(out[n-1].Last) > 0 {
					out[n-1].Last = r.Last
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// rangesOf returns the ranges of the prefixes of a family.
func rangesOf(f ir.Family, prefixes ...netip.Prefix) ranges {
	var all []prove.Addrs
	for _, p := range prefixes {
		if f.Has(p.Addr()) {
			all = append(all, prove.Addrs{First: p.Masked().Addr(), Last: ir.LastOf(p)})
		}
	}
	return newRanges(all)
}

// without returns the addresses that are not in o.
func (r ranges) without(o ranges) ranges {
	var out ranges
	for _, one := range r {
		at := one.First
		for _, cut := range o {
			if !at.IsValid() || cut.Last.Compare(at) < 0 || cut.First.Compare(one.Last) > 0 {
				continue
			}
			if cut.First.Compare(at) > 0 {
				out = append(out, prove.Addrs{First: at, Last: cut.First.Prev()})
			}
			at = cut.Last.Next() // invalid after the last address
		}
		if at.IsValid() && at.Compare(one.Last) <= 0 {
			out = append(out, prove.Addrs{First: at, Last: one.Last})
		}
	}
	return out
}

// within returns the addresses that are also in o.
func (r ranges) within(o ranges) ranges { return r.without(r.without(o)) }

// prefixes returns the smallest list of prefixes that covers the addresses.
func (r ranges) prefixes() (out []netip.Prefix) {
	for _, one := range r {
		out = append(out, ir.PrefixesOf(one.First, one.Last)...)
	}
	return out
}

package lint

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/proxyc/proxyc/ir"
)

// ranges is a sorted list of CIDRs, none of which contains another.
type ranges []netip.Prefix

func newRanges(list []netip.Prefix) ranges {
	sorted := make([]netip.Prefix, len(list))
	for i, p := range list {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare) // for equal addresses, the wider range first
	var out ranges
	for _, p := range sorted {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// before returns the number of ranges whose first address is a or precedes a.
func (r ranges) before(a netip.Addr) int {
	return sort.Search(len(r), func(i int) bool { return a.Less(r[i].Addr()) })
}

// contains reports whether a range contains the address.
func (r ranges) contains(a netip.Addr) bool {
	i := r.before(a)
	return i > 0 && r[i-1].Contains(a)
}

// overlapping returns a range that overlaps p.
func (r ranges) overlapping(p netip.Prefix) (netip.Prefix, bool) {
	i := r.before(p.Masked().Addr())
	for _, o := range r[max(i-1, 0):min(i+1, len(r))] {
		if o.Overlaps(p) {
			return o, true
		}
	}
	return netip.Prefix{}, false
}

// has reports whether the list contains a range of the family.
func (r ranges) has(f ir.Family) bool {
	return slices.ContainsFunc(r, func(p netip.Prefix) bool { return f.Has(p.Addr()) })
}

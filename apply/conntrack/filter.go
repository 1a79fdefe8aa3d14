package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// filter selects the UDP entries of a family that the kernel dumps: those to addr and port, each
// unless zero.
type filter struct {
	family ir.Family
	addr   netip.Addr
	port   uint16
}

// matches reports whether an entry matches the filter.
func (f filter) matches(e Entry) bool {
	return e.Protocol == ir.UDP && ir.FamilyOf(e.To.Addr()) == f.family &&
		(!f.addr.IsValid() || e.To.Addr() == f.addr) && (f.port == 0 || e.To.Port() == f.port)
}

// maxFilters is how many dumps with a filter are cheaper than one without. The kernel accepts one
// filter per dump, and walks its whole table for each. To check an entry costs the kernel about a
// tenth of sending it and discarding it here.
const maxFilters = 8

// filters returns the narrowest filters that match all entries that may be stale: one per frontend,
// else one per port, else one for all of UDP.
//
// The kernel cannot filter by IPv6 addresses. ctnetlink_filter_match_tuple
// (net/netfilter/nf_conntrack_netlink.c, from 5.8 up to 6.18 at least) treats !ipv6_addr_cmp, which
// means "equal", as "different", and so dumps the entries of all other addresses. Its other filters
// (zone, mark, status, protocol) do not distinguish Services, and the address of a reply is
// compared by the same function.
func (sel *Selector) filters() []filter {
	var out []filter
	switch {
	case len(sel.checked) <= maxFilters && sel.family == ir.IPv4:
		for _, m := range slices.SortedFunc(maps.Keys(sel.checked), ir.Match.Compare) {
			out = append(out, filter{sel.family, m.Addr, m.Port})
		}
	case len(sel.ports) <= maxFilters:
		for _, port := range slices.Sorted(maps.Keys(sel.ports)) {
			out = append(out, filter{family: sel.family, port: port})
		}
	default:
		out = []filter{{family: sel.family}}
	}
	return out
}

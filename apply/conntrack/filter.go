package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// filter is which UDP entries of a family the kernel is to send: those that
// were sent to an address and a port, as far as these are not zero.
type filter struct {
	family ir.Family
	addr   netip.Addr
	port   uint16
}

// takes reports whether an entry passes the filter.
func (f filter) takes(e Entry) bool {
	return e.Protocol == ir.UDP && ir.FamilyOf(e.To.Addr()) == f.family &&
		(!f.addr.IsValid() || e.To.Addr() == f.addr) && (f.port == 0 || e.To.Port() == f.port)
}

// mostFilters is how many filters are worth their while. The kernel takes one
// at a time, and looks through its whole table for each: to look at an entry
// costs it about a tenth of what it costs to send it, and to throw it away here.
const mostFilters = 8

// filters returns those that let everything through that the Selector may find
// stale, and as little else as they can: one for each frontend, else one for
// each port, else one for all of UDP. IPv6 addresses are none that the kernel
// can be asked for: ctnetlink_filter_match_tuple (net/netfilter/nf_conntrack_netlink.c,
// from 5.8 up to 6.18 at least) takes !ipv6_addr_cmp for "differs", which is
// "equals", and so sends the entries of all other addresses instead. Nothing
// else that it filters by (zone, mark, status, protocol) tells Services apart,
// and a reply's address goes through the same function.
func (sel *Selector) filters() []filter {
	var out []filter
	switch {
	case len(sel.look) <= mostFilters && sel.family == ir.IPv4:
		for _, m := range slices.SortedFunc(maps.Keys(sel.look), ir.Match.Compare) {
			out = append(out, filter{sel.family, m.Addr, m.Port})
		}
	case len(sel.ports) <= mostFilters:
		for _, port := range slices.Sorted(maps.Keys(sel.ports)) {
			out = append(out, filter{family: sel.family, port: port})
		}
	default:
		out = []filter{{family: sel.family}}
	}
	return out
}

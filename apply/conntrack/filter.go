package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// filter selects the entries of a family and a protocol that the kernel dumps: those to addr and
// port, each unless zero. Of TCP and SCTP, the kernel may leave out those with a reply.
type filter struct {
	family   ir.Family
	protocol ir.Protocol
	addr     netip.Addr
	port     uint16
}

// matches reports whether an entry matches the filter.
func (f filter) matches(e Entry) bool {
	return e.Protocol == f.protocol && ir.FamilyOf(e.To.Addr()) == f.family &&
		(!f.addr.IsValid() || e.To.Addr() == f.addr) && (f.port == 0 || e.To.Port() == f.port)
}

// maxFilters is how many dumps with a filter are cheaper than one without. The kernel accepts one
// filter per dump, and walks its whole table for each. To check an entry costs the kernel about a
// tenth of sending it and discarding it here.
const maxFilters = 8

// filters returns the narrowest filters that match all entries that may be stale: one per frontend,
// else one per protocol and port, else one per protocol.
//
// The kernel cannot filter by IPv6 addresses. ctnetlink_filter_match_tuple
// (net/netfilter/nf_conntrack_netlink.c, from 5.8 up to 6.18 at least) treats !ipv6_addr_cmp, which
// means "equal", as "different", and so dumps the entries of all other addresses. Its other filters
// (zone, mark, status, protocol) do not distinguish Services, and the address of a reply is
// compared by the same function.
func (sel *Selector) filters() (out []filter) {
	by := func(of func(ir.Match) filter) (all []filter) {
		for m := range sel.checked {
			all = append(all, of(m))
		}
		slices.SortFunc(all, func(a, b filter) int {
			return cmp.Or(cmp.Compare(a.protocol, b.protocol), a.addr.Compare(b.addr), cmp.Compare(a.port, b.port))
		})
		return slices.Compact(all)
	}
	if len(sel.checked) <= maxFilters && sel.family == ir.IPv4 {
		return by(func(m ir.Match) filter { return filter{sel.family, m.Protocol, m.Addr, m.Port} })
	}
	if len(sel.ports) <= maxFilters {
		out = by(func(m ir.Match) filter { return filter{sel.family, m.Protocol, netip.Addr{}, m.Port} })
	}
	if len(out) == 0 || len(out) > maxFilters {
		out = by(func(m ir.Match) filter { return filter{family: sel.family, protocol: m.Protocol} })
	}
	return out
}

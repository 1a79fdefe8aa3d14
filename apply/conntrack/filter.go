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

// filters returns the narrowest filters that match all entries that may be stale. Of TCP and SCTP, the
// kernel sends only entries without a reply, which are few: one filter each. Of UDP: one per frontend,
// else one per port, else one for all.
//
// The kernel cannot filter by IPv6 addresses. ctnetlink_filter_match_tuple
// (net/netfilter/nf_conntrack_netlink.c, from 5.8 up to 6.18 at least) treats !ipv6_addr_cmp, which
// means "equal", as "different", and so dumps the entries of all other addresses. Its other filters
// (zone, mark, status, protocol) do not distinguish Services, and the address of a reply is
// compared by the same function.
func (sel *Selector) filters() []filter {
	var tcp, exact, ports []filter
	for m := range sel.checked {
		if m.Protocol != ir.UDP {
			tcp = append(tcp, filter{family: sel.family, protocol: m.Protocol})
			continue
		}
		exact = append(exact, filter{sel.family, ir.UDP, m.Addr, m.Port})
		ports = append(ports, filter{family: sel.family, protocol: ir.UDP, port: m.Port})
	}
	ports = sorted(ports)
	udp := []filter{{family: sel.family, protocol: ir.UDP}}
	switch {
	case len(exact) == 0, len(exact) <= maxFilters && sel.family == ir.IPv4:
		udp = exact
	case len(ports) <= maxFilters:
		udp = ports
	}
	return sorted(append(tcp, udp...))
}

// sorted returns filters in order, without duplicates.
func sorted(all []filter) []filter {
	slices.SortFunc(all, func(a, b filter) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), a.addr.Compare(b.addr), cmp.Compare(a.port, b.port))
	})
	return slices.Compact(all)
}

package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/ir"
)

var addressFamily = map[ir.Family]int{ir.IPv4: unix.AF_INET, ir.IPv6: unix.AF_INET6}

// rulesOf returns the rules of routing of an address family.
func rulesOf(family int) (rules []netlink.Rule, err error) {
	err = socket.RetryInterrupted(func() (_ bool, err error) { rules, err = netlink.RuleList(family); return false, err })
	return rules, err
}

// routing is what routes a Program's packets, in all tables.
type routing struct {
	all     netip.Prefix // of the family
	rules   []netlink.Rule
	known   map[netip.Prefix]bool // destinations of routes and rules; true if some route discards, or there is a rule
	links   map[int]bool          // with routes in table main
	senders []sender              // of the marks on which routes depend
	unclear []string              // rules that discard packets by more than destination and mark
}

// readRouting reads what routes a Program's packets. It ignores rules of marks that no packet has, by marking.
func readRouting(p *ir.Program, marking func(value, mask uint32) string) (r routing, err error) {
	own := p.Node.MasqueradeMark()
	r = routing{all: p.Family.Any(), known: map[netip.Prefix]bool{}, links: map[int]bool{}, senders: []sender{{}, {RouteQuery: RouteQuery{Mark: own}}}}
	rules, err := rulesOf(addressFamily[p.Family])
	for _, rule := range rules {
		if mask := cmp.Or(rule.Mask, new(uint32)); rule.Mark != 0 && !rule.Invert && own&*mask != rule.Mark {
			by := marking(rule.Mark, *mask)
			if by == "" {
				continue
			}
			r.senders = append(r.senders, sender{RouteQuery{Mark: rule.Mark}, fmt.Sprintf(" with mark %#x, which may be set by %s", rule.Mark, by)})
		}
		r.addRule(rule)
	}
	var routes []netlink.Route
	err = errors.Join(err, socket.RetryInterrupted(func() (_ bool, err error) {
		routes, err = netlink.RouteListFiltered(addressFamily[p.Family], &netlink.Route{}, netlink.RT_FILTER_TABLE) // of all tables
		return false, err
	}))
	for _, route := range routes {
		if route.Table == unix.RT_TABLE_MAIN {
			r.links[route.LinkIndex] = true
		}
		r.add(route.Dst, route.Type >= unix.RTN_BLACKHOLE && route.Type <= unix.RTN_PROHIBIT || route.Flags&unix.RTNH_F_LINKDOWN != 0)
	}
	return r, err
}

// add adds a destination of a rule or route.
func (r *routing) add(dst *net.IPNet, doubtful bool) {
	to := r.all
	if dst != nil {
		addr, _ := netip.AddrFromSlice(dst.IP)
		ones, _ := dst.Mask.Size()
		to = netip.PrefixFrom(addr.Unmap(), ones).Masked() // the kernel keeps all bits of a rule's
	}
	r.known[to] = r.known[to] || doubtful
}

func (r *routing) addRule(rule netlink.Rule) {
	r.rules = append(r.rules, rule)
	same := rule // without what selects packets besides destination and mark
	same.Src, same.IifName, same.OifName, same.Tos, same.TunID, same.IPProto, same.Sport, same.Dport, same.UIDRange, same.Invert = nil, "", "", 0, 0, 0, nil, nil, nil, false
	switch discards := rule.Table == unix.RT_TABLE_UNSPEC && rule.Goto < 0; { // the type of a rule is not read
	case discards && same != rule && rule.Priority <= 32766: // after table main, only packets without a route there arrive
		r.unclear = append(r.unclear, fmt.Sprintf("ip rule %d may discard packets to Services, depending on more than destination and mark", rule.Priority))
	case rule.Dst != nil, discards && same == rule:
		r.add(rule.Dst, true)
	}
}

// doubtful returns the destinations that the kernel may discard: those to which a route discards or a rule applies, and in a
// network also pods of the node, and those without a route. Of those that no rule or route distinguishes, it returns two:
// one may be the sender.
func (r *routing) doubtful(all map[netip.Addr]Destination, networked bool) (some []Destination) {
	lengths := map[int]bool{}
	for p := range r.known {
		lengths[p.Bits()] = true
	}
	sorted := slices.Sorted(maps.Keys(lengths))
	alike := map[Destination]int{}
	for _, addr := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		d, doubtful, routed := all[addr], false, netip.Prefix{}
		for _, bits := range sorted {
			p, _ := addr.Prefix(bits)
			if is, ok := r.known[p]; ok {
				doubtful, routed = doubtful || is, p // the last is the most specific
			}
		}
		like := Destination{d.RouteQuery, routed.String()}
		like.Dst = netip.Addr{}
		if alike[like]++; alike[like] <= 2 && (doubtful || networked && (d.Local || !routed.IsValid())) {
			some = append(some, d)
		}
	}
	return some
}

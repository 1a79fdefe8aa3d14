package node

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/ir"
)

// Unfollowed returns what may discard packets from or to a port of an endpoint that leave by an interface, and
// neither rules nor Route show: rules of routing by port or user, programs and queues of the interface, a
// neighbour that did not answer, and IPsec policies.
func Unfollowed(s RouteQuery, protocol ir.Protocol, port uint16, out string) (found []string, err error) {
	family := addressFamily[ir.FamilyOf(s.Dst)]
	rules, err := rulesOf(family)
	for _, r := range rules {
		if (r.UIDRange != nil && s.In == "" || r.IPProto != 0 || r.Sport != nil || r.Dport != nil) && meets(r, protocol, port) {
			found = append(found, fmt.Sprintf("ip rule %d, which depends on more than addresses, interface and mark", r.Priority))
		}
	}
	policies, _ := netlink.XfrmPolicyList(family) // a kernel without IPsec has none
	for _, p := range policies {
		if p.Action == netlink.XFRM_POLICY_BLOCK && (p.Dst == nil || p.Dst.Contains(s.Dst.AsSlice())) {
			found = append(found, fmt.Sprintf("the IPsec policy %s to %s, which blocks", p.Src, p.Dst))
		}
	}
	on, onErr := discardingOn(out)
	return append(append(found, on...), silent(s, out)...), errors.Join(err, onErr)
}

// meets reports whether a rule may apply to packets from or to a port.
func meets(r netlink.Rule, protocol ir.Protocol, port uint16) bool {
	has := func(r *netlink.RulePortRange) bool { return r != nil && r.Start <= port && port <= r.End }
	return (has(r.Sport) || has(r.Dport) || r.Sport == nil && r.Dport == nil) && (r.IPProto == 0 || r.IPProto == int(protocol))
}

// discardingOn returns what may discard packets on an interface.
func discardingOn(name string) (found []string, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
		found = append(found, "the XDP program of interface "+name)
	}
	for _, parent := range [...]uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if filters, _ := netlink.FilterList(link, parent); len(filters) > 0 { // a kernel without tc has none
			found = append(found, "tc filters of interface "+name)
		}
	}
	queues, _ := netlink.QdiscList(link)
	for _, q := range queues {
		if kind := q.Type(); kind == "blackhole" || kind == "netem" {
			found = append(found, fmt.Sprintf("the queueing discipline %s of interface %s", kind, name))
		}
	}
	return found, nil
}

// silent returns the neighbour to which the kernel sends packets of a query, if it did not answer last.
func silent(s RouteQuery, out string) []string {
	routes, err := netlink.RouteGetWithOptions(s.Dst.AsSlice(), &netlink.RouteGetOptions{Mark: s.Mark, Oif: out})
	if err != nil || len(routes) == 0 {
		return nil
	}
	next := routes[0].Gw
	if next == nil {
		next = s.Dst.AsSlice()
	}
	all, _ := netlink.NeighList(routes[0].LinkIndex, netlink.FAMILY_ALL)
	for _, n := range all {
		if n.IP.Equal(next) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0 {
			return []string{fmt.Sprintf("neighbour %s on %s, which did not answer", next, out)}
		}
	}
	return nil
}

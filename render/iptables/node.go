package iptables

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// builtInJumps returns the jumps from built-in chains in traversal order.
// kube-proxy prepends each in turn, so its list is in reverse order. The comments
// are fixed, because they identify the jumps.
func builtInJumps(node *ir.Node) (filter, nat []BuiltInJump) {
	const (
		external   = "kubernetes externally-visible service portals"
		health     = "kubernetes health check service ports"
		services   = "kubernetes service portals"
		forwarding = "kubernetes forwarding rules"
		lbFirewall = "kubernetes load balancer firewall"
		masquerade = "kubernetes postrouting rules"
	)
	jump := func(from, to string, states State, comment string) BuiltInJump {
		return BuiltInJump{Chain: from, Rule: Rule{States: states, Comment: comment, Target: Jump, Chain: to}}
	}
	if node.NodePorts.Loopback {
		filter = append(filter, jump("INPUT", chainFirewall, 0, ""), jump("OUTPUT", chainFirewall, 0, ""))
	}
	filter = append(filter,
		jump("INPUT", ChainProxyFW, New, lbFirewall),
		jump("INPUT", ChainNodePorts, 0, health),
		jump("INPUT", chainExternal, New, external),
		jump("FORWARD", ChainProxyFW, New, lbFirewall),
		jump("FORWARD", ChainForward, 0, forwarding),
		jump("FORWARD", ChainServices, New, services),
		jump("FORWARD", chainExternal, New, external),
		jump("OUTPUT", ChainProxyFW, New, lbFirewall),
		jump("OUTPUT", ChainServices, New, services),
	)
	nat = []BuiltInJump{
		jump("PREROUTING", ChainServices, 0, services),
		jump("OUTPUT", ChainServices, 0, services),
		jump("POSTROUTING", ChainPostrouting, 0, masquerade),
	}
	return filter, nat
}

// forward accepts translated packets, regardless of the policy of FORWARD. Most
// packets belong to established connections, so their rule is first.
func forward(node *ir.Node) []Rule {
	mark := node.MasqueradeMark()
	rules := []Rule{{States: Related | Established, Comment: "kubernetes forwarding conntrack rule", Target: Accept}}
	if node.DropInvalid {
		rules = append(rules, Rule{States: Invalid, Target: Drop})
	}
	return append(rules, Rule{Mark: Mark{mark, mark}, Comment: "kubernetes forwarding rules", Target: Accept})
}

// firewall drops packets from other machines to localhost. Node ports at
// localhost require the sysctl route_localnet, which would accept them.
func firewall() []Rule {
	localnet := ir.IPv4.Loopback()
	return []Rule{{
		Not: Src | States, Src: localnet, Dst: localnet, States: Related | Established | DNATed,
		Comment: "block incoming localnet connections", Target: Drop,
	}}
}

// markMasq marks packets for masquerade. All connections to node ports at
// localhost pass it once, before translation; a separate rule counts them.
func markMasq(node *ir.Node) []Rule {
	mark := node.MasqueradeMark()
	set := Rule{Target: SetMark, XMark: Mark{mark, mark}}
	if !node.NodePorts.Loopback {
		return []Rule{set}
	}
	counted := set
	counted.Dst, counted.Comment = ir.IPv4.Loopback(), "kubernetes localhost node ports"
	return []Rule{counted, set}
}

// postrouting masquerades marked packets. It clears the mark first, because the
// packet may pass again inside a tunnel.
func postrouting(node *ir.Node) []Rule {
	mark := node.MasqueradeMark()
	return []Rule{
		{States: DNATed, Comment: "hairpin connections", Target: Jump, Chain: chainHairpin},
		{Not: MarkMatch, Mark: Mark{mark, mark}, Target: Return},
		{Target: SetMark, XMark: Mark{mark, 0}},
		{Comment: "kubernetes service traffic requiring SNAT", Target: Masquerade, RandomFully: true},
	}
}

// nodePortDispatch returns the jumps to KUBE-NODEPORTS for the node's own
// addresses. They are at the end of nat KUBE-SERVICES: node ports have the lowest
// precedence (PKT-18).
func nodePortDispatch(family ir.Family, a *ir.NodePortAddrs) []Rule {
	last := Rule{Target: Jump, Chain: ChainNodePorts, origin: &a.Origin,
		Comment: "kubernetes service nodeports; NOTE: this must be the last rule in this chain"}
	loopback := family.Loopback()
	if a.All {
		last.DstLocal = true
		if !a.Loopback {
			last.Not, last.Dst = Dst, loopback
		}
		return []Rule{last}
	}
	var rules []Rule
	for i := range a.Prefixes {
		p := &a.Prefixes[i]
		if !a.Loopback && within(p.Prefix, loopback) {
			continue
		}
		r := last
		r.Comment = "kubernetes service nodeports"
		r.Dst, r.DstLocal, r.origin = Prefix(p.Prefix), p.Assigned, &p.Origin
		rules = append(rules, r)
	}
	holdsLoopback := func(p ir.NodePortPrefix) bool { return p.Prefix.Overlaps(loopback) && !within(p.Prefix, loopback) }
	if !a.Loopback && slices.ContainsFunc(a.Prefixes, holdsLoopback) {
		rules = slices.Insert(rules, 0, Rule{Dst: loopback, Target: Return, origin: &a.Origin})
	}
	return rules
}

func within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}

// Prefix returns p in the form of a rule: the tools omit a prefix that matches
// every address.
func Prefix(p netip.Prefix) netip.Prefix {
	if p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p.Masked()
}

func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

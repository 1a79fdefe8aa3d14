package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fixed returns the part of a table that does not depend on Services.
func Fixed(node *ir.Node, family ir.Family) *Ruleset {
	return &Ruleset{Family: family, Chains: Shared(node, family, nil), Sets: slices.Clone(fixedSets[:])}
}

// fixed returns the origin of parts that depend on neither objects nor
// configuration.
func fixed(reason string) ir.Origin { return ir.Origin{Object: "default", Reason: reason} }

// baseChains returns the base chains of every cluster except postrouting.
// affinityChains returns those that only some Services require. All are of type
// nat, which the kernel calls for the first packet of a connection only: no other
// packet traverses a rule. Names and priorities are kube-proxy's for chains with
// the same purpose.
//
// During a commit, a packet may traverse old rules and look up new elements. If
// it then finds no backend, it is dropped. If it were accepted, connection tracking
// would keep its connection untranslated.
func baseChains() []Chain {
	always := []Rule{
		{[]Stmt{Verdict{Jump, chainServices}}, fixed("the kernel shows the first packet of a connection only")},
		{[]Stmt{Verdict{Jump, rootName(markAll, false)}}, fixed("what returns is masqueraded whatever its source")},
		{[]Stmt{Verdict{Kind: Drop}}, fixed("a packet that meets a commit is sent again, and then finds its backend")},
	}
	return []Chain{
		{Name: chainNATPrerouting, Base: &Base{NAT: true, Hook: Prerouting, Priority: PriorityDNAT}, Rules: always},
		{Name: chainNATOutput, Base: &Base{NAT: true, Hook: Output, Priority: PriorityDNAT}, Rules: always},
	}
}

func fixedChains(node *ir.Node, family ir.Family) []Chain {
	refused := func(id SetID) Rule {
		return Rule{[]Stmt{lookup(id), Verdict{Kind: Reject}}, fixed("frontends without endpoints are dropped, or refused")}
	}
	others := Rule{[]Stmt{Verdict{Kind: Accept}}, fixed("what is not for a Service stays as it is")}
	without := Rule{[]Stmt{Verdict{Goto, chainNoBackend}}, fixed("no frontend with endpoints")}
	return []Chain{
		{Name: chainServices, Rules: slices.Concat(
			[]Rule{{[]Stmt{lookup(ServiceIPs), Verdict{Goto, rootName(usualMarks(node), false)}}, fixed("addresses come before node ports")}},
			nodePortRules(node, family, Verdict{Goto, chainNodePorts}), []Rule{without})},
		{Name: chainNodePorts, Rules: []Rule{
			{[]Stmt{lookup(ServicePorts), Verdict{Goto, rootName(markAll, true)}}, fixed("node ports are looked up at the addresses where they answer")},
			refused(NoEndpointPorts), without}},
		{Name: chainNoBackend, Rules: slices.Concat(localhostRules(node, family), []Rule{refused(NoEndpointIPs)}, clusterIPsCheck(node), []Rule{others})},
		{Name: chainIPsBySource, Rules: slices.Concat(bySource(node, InsideIPs, OutsideIPs),
			nodePortRules(node, family, refused(NoEndpointPorts).Stmts...), []Rule{refused(NoEndpointIPs), others})},
		{Name: chainPortsBySource, Rules: append(bySource(node, InsidePorts, OutsidePorts), refused(NoEndpointPorts), others)},
	}
}

// byProtocol returns a lookup of a key with the original port of a connection,
// with one rule for each protocol: nft 1.0.6 accepts that port only in a rule
// that names the protocol.
func byProtocol(key []Term, id SetID, origin ir.Origin) (rules []Rule) {
	for _, p := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		rules = append(rules, Rule{[]Stmt{MatchProto{p}, LookupVerdict{key, id.String()}}, origin})
	}
	return rules
}

// lookup returns the lookup of a verdict in a map of frontends.
func lookup(id SetID) Stmt {
	return LookupVerdict{frontendTerms(len(fixedSets[id].Key) == len(nodePortKey)), id.String()}
}

// nodePortRules apply statements to packets to the addresses where node ports answer.
func nodePortRules(node *ir.Node, family ir.Family, then ...Stmt) []Rule {
	np := &node.NodePorts
	rule := func(o ir.Origin, match ...Stmt) Rule {
		if !np.Loopback {
			match = append(match, MatchNet{DstAddr, family.Loopback(), true})
		}
		return Rule{append(match, then...), o}
	}
	if np.All {
		return []Rule{rule(np.Origin, MatchLocal{DstAddr, false})}
	}
	var rules []Rule
	for _, p := range np.Prefixes {
		match := []Stmt{MatchNet{DstAddr, p.Prefix, false}}
		if p.Assigned {
			match = append(match, MatchLocal{DstAddr, false})
		}
		rules = append(rules, rule(p.Origin, match...))
	}
	return rules
}

// localhostRules count and reject packets to node ports at loopback addresses. Each
// protocol has its counter, which the metrics export.
func localhostRules(node *ir.Node, family ir.Family) (rules []Rule) {
	for _, p := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		if node.NodePorts.RejectsLocalhost(p) {
			rules = append(rules, Rule{[]Stmt{MatchNet{DstAddr, family.Loopback(), false}, MatchProto{p},
				MatchSet{Key: frontendTerms(true), Set: LocalhostPorts.String()}, Counter{}, Verdict{Kind: Reject}},
				ir.Origin{Object: "config", Field: "featureGates", Reason: "node ports at localhost that no process serves (KEP-6032)"}})
		}
	}
	return rules
}

// LocalhostChain is the chain with the rules for which RejectsLocalhost returns a protocol.
const LocalhostChain = chainNoBackend

// RejectsLocalhost returns the protocol of a rule that rejects node ports at loopback
// addresses, or 0.
func (r *Rule) RejectsLocalhost() (p ir.Protocol) {
	rejects := false
	for _, s := range r.Stmts {
		switch s := s.(type) {
		case MatchProto:
			p = s.Protocol
		case MatchSet:
			rejects = rejects || s.Set == LocalhostPorts.String()
		}
	}
	if !rejects {
		return 0
	}
	return p
}

// DropsUnused reports whether a rule of LocalhostChain counts and drops packets to unused addresses.
func (r *Rule) DropsUnused() bool {
	return slices.Contains(r.Stmts, Stmt(Counter{})) && slices.Contains(r.Stmts, Stmt(Verdict{Kind: Drop}))
}

// bySource distinguishes pods and the node, which are inside, from other sources.
func bySource(node *ir.Node, inside, outside SetID) []Rule {
	var rules []Rule
	if node.Detector.Mode != ir.DetectNone {
		rules = append(rules, Rule{append(fromPods(&node.Detector, false), lookup(inside)), node.Detector.Origin})
	}
	return append(rules,
		Rule{[]Stmt{MatchLocal{SrcAddr, false}, lookup(inside)}, fixed("what the node itself sends is not external traffic")},
		Rule{[]Stmt{lookup(outside)}, fixed("external traffic stays on the node, by externalTrafficPolicy Local")})
}

// clusterIPsCheck rejects unused ports of ClusterIPs and drops packets to unused
// addresses of ServiceCIDRs, but not to the node's own addresses.
func clusterIPsCheck(node *ir.Node) []Rule {
	elsewhere := MatchLocal{DstAddr, true}
	rules := []Rule{{[]Stmt{
		MatchSet{Key: []Term{{Field: DstAddr}}, Set: ClusterIPs.String()}, elsewhere, Verdict{Kind: Reject},
	}, fixed("a ClusterIP refuses ports that its Service does not have")}}
	for _, c := range node.ServiceCIDRs {
		rules = append(rules, Rule{[]Stmt{MatchNet{DstAddr, c.Prefix, false}, elsewhere, Counter{}, Verdict{Kind: Drop}}, c.Origin})
	}
	return rules
}

// affinityChains store the backend of a client, by addresses or by node ports.
// Services with affinity share them; affinityRule jumps to them. Packets to
// backends on the node itself pass input instead of postrouting.
func affinityChains(nodePort bool) []Chain {
	input, common, set, pools := chainAffinityInput, chainAffinity, AffinityIPs, AffinityPools
	key := []Term{{Field: DstAddr}, {Field: DstPort}, {Field: OrigDstAddr}, {Field: L4Proto}, {Field: OrigDstPort}}
	if nodePort {
		input, common, set, pools = chainAffinityPortsInput, chainAffinityPorts, AffinityPorts, AffinityPortPools
		key = slices.Delete(key, 2, 3)
	}
	before := ir.Int(nodePort) // a distinct priority, so that the order is defined
	return []Chain{
		{Name: input, Base: &Base{NAT: true, Hook: Input, Priority: PrioritySNAT - before}, Rules: []Rule{affinityRule(nodePort)}},
		{Name: common, Rules: append(byProtocol(key, set, remembered), byProtocol(key[2:], pools, remembered)...)},
	}
}

var remembered = fixed("remembered for session affinity")

// affinityRule returns the jump for translated connections. For addresses, it
// matches only those with affinity, because all connections pass here.
func affinityRule(nodePort bool) Rule {
	if nodePort {
		return Rule{[]Stmt{MatchDNAT{}, Verdict{Jump, chainAffinityPorts}}, remembered}
	}
	return Rule{[]Stmt{MatchDNAT{}, MatchSet{Key: []Term{{Field: OrigDstAddr}}, Set: AffinityAddrs.String()}, Verdict{Jump, chainAffinity}}, remembered}
}

// postrouting stores the backends of clients if Services require it. Then it
// masquerades marked connections and hairpin connections, which ends the
// evaluation. The mark's other bits belong to other programs.
func postrouting(node *ir.Node, affine [2]bool) Chain {
	c := Chain{Name: chainNATPostrouting, Base: &Base{NAT: true, Hook: Postrouting, Priority: PrioritySNAT}}
	for nodePort, is := range affine {
		if is {
			c.Rules = append(c.Rules, affinityRule(nodePort == 1))
		}
	}
	mark := node.MasqueradeMark()
	c.Rules = append(c.Rules,
		Rule{[]Stmt{MatchMark{Mask: mark}, ClearMark{mark}, Masquerade{}}, fixed("connections marked for masquerade")},
		Rule{[]Stmt{MatchDNAT{}, MatchSet{Key: []Term{{Field: SrcAddr}, {Field: DstAddr}}, Set: Hairpin.String()}, Masquerade{}},
			fixed("a backend's connection to itself must come back through the node")})
	return c
}

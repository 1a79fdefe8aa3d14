package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fixed makes the part of a table that does not depend on Services.
func Fixed(node *ir.Node, family ir.Family) *Ruleset {
	sets := make([]Set, setCount)
	copy(sets, fixedSets[:])
	none := inUse{}
	changing := none.chains(node, family) // a base chain is the first
	return &Ruleset{Family: family, Chains: slices.Concat(baseChains(), changing[:1], fixedChains(node, family), changing[1:]), Sets: sets}
}

// fixed returns the origin of what is there whatever the objects and the
// configuration say.
func fixed(reason string) ir.Origin { return ir.Origin{Object: "default", Reason: reason} }

// baseChains returns the chains that the kernel calls in every cluster, but for postrouting;
// affinityChains has those that it calls where a Service needs them. Names are kube-proxy's
// where the chain is the same thing, and so are priorities. The filter chains see the
// frontend's address only if nothing translated it.
func baseChains() []Chain {
	always := []Rule{
		{[]Stmt{Verdict{Jump, chainServices}}, fixed("the kernel shows the first packet of a connection only")},
		{[]Stmt{Verdict{Goto, rootName(markAll, false)}}, fixed("what returns is masqueraded whatever its source")},
	}
	return []Chain{
		{Name: chainFilterInput, Base: &Base{Hook: Input, Priority: PriorityFilter}, Rules: ifNew(chainServiceEndpoints)},
		{Name: chainFilterForward, Base: &Base{Hook: Forward, Priority: PriorityFilter}, Rules: ifNew(chainClusterIPsCheck)},
		{Name: chainFilterOutput, Base: &Base{Hook: Output, Priority: PriorityFilter}, Rules: ifNew(chainClusterIPsCheck)},
		{Name: chainNATPrerouting, Base: &Base{NAT: true, Hook: Prerouting, Priority: PriorityDNAT}, Rules: always},
		{Name: chainNATOutput, Base: &Base{NAT: true, Hook: Output, Priority: PriorityDNAT}, Rules: always},
	}
}

// ifNew has one rule, since other packets pass it as well.
func ifNew(chain string) []Rule {
	return []Rule{{[]Stmt{MatchNew{}, Verdict{Jump, chain}}, fixed("only the first packets of a connection are looked at")}}
}

func fixedChains(node *ir.Node, family ir.Family) []Chain {
	others := Rule{[]Stmt{Verdict{Kind: Accept}}, fixed("what is not for a Service stays as it is")}
	return []Chain{
		{Name: chainServices, Rules: slices.Concat(
			[]Rule{{[]Stmt{lookup(ServiceIPs), Verdict{Goto, rootName(usualMarks(node), false)}}, fixed("addresses come before node ports")}},
			nodePortRules(node, family, ServicePorts, Verdict{Goto, rootName(markAll, true)}),
			[]Rule{others})},
		{Name: chainIPsBySource, Rules: append(bySource(node, InsideIPs, OutsideIPs), others)},
		{Name: chainPortsBySource, Rules: append(bySource(node, InsidePorts, OutsidePorts), others)},
	}
}

// checkChains stop what no Service serves, and, where some frontend is guarded, whom it does
// not admit.
func checkChains(node *ir.Node, family ir.Family, guarded bool) []Chain {
	refused := Verdict{Kind: Reject}
	noEndpoints := Rule{[]Stmt{lookup(NoEndpointIPs), refused}, fixed("frontends without endpoints are dropped, or refused")}
	var guard []Rule
	if guarded {
		guard = []Rule{{[]Stmt{MatchSet{Key: []Term{{Field: OrigDstAddr}}, Set: FirewallAddrs.String()}, Verdict{Jump, chainFirewallCheck}},
			fixed("loadBalancerSourceRanges come before all that refuses")}}
	}
	return []Chain{
		{Name: chainServiceEndpoints, Rules: slices.Concat(guard, nodePortRules(node, family, NoEndpointPorts, refused), []Rule{noEndpoints})},
		{Name: chainClusterIPsCheck, Rules: slices.Concat(guard, []Rule{noEndpoints}, clusterIPsCheck(node))},
	}
}

// guardChain drops what loadBalancerSourceRanges do not admit, by where the client sent it:
// it may be translated by now. A base chain before that, as kube-proxy has it, every packet would
// pass in both directions; here only the first ones of a connection do.
func guardChain() Chain {
	key := []Term{{Field: OrigDstAddr}, {Field: L4Proto}, {Field: OrigDstPort}}
	return Chain{Name: chainFirewallCheck, Rules: byProtocol(key, FirewallLists, fixed("what loadBalancerSourceRanges do not admit"))}
}

// byProtocol looks a key with the original port of a connection up, with one rule for each protocol:
// nft 1.0.6 takes that port only where the rule names the protocol.
func byProtocol(key []Term, id SetID, origin ir.Origin) (rules []Rule) {
	for _, p := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		rules = append(rules, Rule{[]Stmt{MatchProto{p}, LookupVerdict{key, id.String()}}, origin})
	}
	return rules
}

// lookup returns the verdict of a map of frontends.
func lookup(id SetID) Stmt {
	return LookupVerdict{frontendTerms(len(fixedSets[id].Key) == len(nodePortKey)), id.String()}
}

// nodePortRules look node ports up in the map, on the addresses that have them, and
// then go on as the map does not say otherwise.
func nodePortRules(node *ir.Node, family ir.Family, id SetID, then Verdict) []Rule {
	np := &node.NodePorts
	rule := func(o ir.Origin, match ...Stmt) Rule {
		if !np.Loopback {
			match = append(match, MatchNet{DstAddr, family.Loopback(), true})
		}
		return Rule{append(match, lookup(id), then), o}
	}
	if np.All {
		return []Rule{rule(np.Origin, MatchLocal{DstAddr})}
	}
	var rules []Rule
	for _, p := range np.Prefixes {
		match := []Stmt{MatchNet{DstAddr, p.Prefix, false}}
		if p.Assigned {
			match = append(match, MatchLocal{DstAddr})
		}
		rules = append(rules, rule(p.Origin, match...))
	}
	return rules
}

// bySource tells pods and the node, which are inside, from everybody else.
func bySource(node *ir.Node, inside, outside SetID) []Rule {
	var rules []Rule
	if node.Detector.Mode != ir.DetectNone {
		rules = append(rules, Rule{append(fromPods(&node.Detector, false), lookup(inside)), node.Detector.Origin})
	}
	return append(rules,
		Rule{[]Stmt{MatchLocal{SrcAddr}, lookup(inside)}, fixed("what the node itself sends is not external traffic")},
		Rule{[]Stmt{lookup(outside)}, fixed("external traffic stays on the node, by externalTrafficPolicy Local")})
}

// clusterIPsCheck stops what is inside the Service network and no Service's.
func clusterIPsCheck(node *ir.Node) []Rule {
	rules := []Rule{{[]Stmt{
		MatchSet{Key: []Term{{Field: DstAddr}}, Set: ClusterIPs.String()}, Verdict{Kind: Reject},
	}, fixed("a ClusterIP refuses ports that its Service does not have")}}
	for _, c := range node.ServiceCIDRs {
		rules = append(rules, Rule{[]Stmt{MatchNet{DstAddr, c.Prefix, false}, Verdict{Kind: Drop}}, c.Origin})
	}
	return rules
}

// affinityChains remember which backend a client met, by addresses or by node ports. Services with
// affinity share them; affinityRule leads there. Backends on the node itself are reached through
// input, not postrouting.
func affinityChains(nodePort bool) []Chain {
	input, common, set := chainAffinityInput, chainAffinity, AffinityIPs
	key := []Term{{Field: DstAddr}, {Field: DstPort}, {Field: OrigDstAddr}, {Field: L4Proto}, {Field: OrigDstPort}}
	if nodePort {
		input, common, set = chainAffinityPortsInput, chainAffinityPorts, AffinityPorts
		key = slices.Delete(key, 2, 3)
	}
	before := btoi(nodePort) // so that their order is known
	return []Chain{
		{Name: input, Base: &Base{NAT: true, Hook: Input, Priority: PrioritySNAT - before}, Rules: []Rule{affinityRule(nodePort)}},
		{Name: common, Rules: byProtocol(key, set, remembered)},
	}
}

var remembered = fixed("remembered for session affinity")

// affinityRule has connections looked at that were translated; by addresses those to one that
// has affinity, since all pass here.
func affinityRule(nodePort bool) Rule {
	if nodePort {
		return Rule{[]Stmt{MatchDNAT{}, Verdict{Jump, chainAffinityPorts}}, remembered}
	}
	return Rule{[]Stmt{MatchDNAT{}, MatchSet{Key: []Term{{Field: OrigDstAddr}}, Set: AffinityAddrs.String()}, Verdict{Jump, chainAffinity}}, remembered}
}

// postrouting remembers which backend a client met, where Services ask for that, and masquerades,
// which ends the walk.
func postrouting(node *ir.Node, affine [2]bool) Chain {
	c := Chain{Name: chainNATPostrouting, Base: &Base{NAT: true, Hook: Postrouting, Priority: PrioritySNAT}}
	for nodePort, is := range affine {
		if is {
			c.Rules = append(c.Rules, affinityRule(nodePort == 1))
		}
	}
	c.Rules = append(c.Rules, masquerading(node)...)
	return c
}

// masquerading gives marked connections the node's address, and those of a
// backend to itself. The mark's other bits are not ours.
func masquerading(node *ir.Node) []Rule {
	mark := node.MasqueradeMark()
	return []Rule{
		{[]Stmt{MatchMark{Mask: mark}, ClearMark{mark}, Masquerade{}}, fixed("connections marked for masquerade")},
		{[]Stmt{MatchDNAT{}, MatchSet{Key: []Term{{Field: SrcAddr}, {Field: DstAddr}, {Field: L4Proto}, {Field: DstPort}}, Set: Hairpin.String()},
			Masquerade{}}, fixed("a backend's connection to itself must come back through the node")},
	}
}

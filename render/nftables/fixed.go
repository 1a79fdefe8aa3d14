package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fixed makes the part of a table that does not depend on Services.
func Fixed(node *ir.Node, family ir.Family) *Ruleset {
	sets := make([]Set, setCount)
	copy(sets, fixedSets[:])
	return &Ruleset{Family: family, Chains: slices.Concat(baseChains(node), fixedChains(node, family), countingChains(node, [2][]int{})), Sets: sets}
}

// fixed returns the origin of what is there whatever the objects and the
// configuration say.
func fixed(reason string) ir.Origin { return ir.Origin{Object: "default", Reason: reason} }

// baseChains returns the chains that the kernel calls in every cluster; guardChains
// and affinityChains have those that it calls where a Service needs them. Names are
// kube-proxy's where the chain is the same thing, and so are priorities. The filter
// chains before DNAT see the frontend's address; those of priority 0 see it only if
// nothing translated it.
func baseChains(node *ir.Node) []Chain {
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
		{Name: chainNATPostrouting, Base: &Base{NAT: true, Hook: Postrouting, Priority: PrioritySNAT}, Rules: masquerading(node)},
	}
}

// ifNew has one rule, since other packets pass it as well.
func ifNew(chain string) []Rule {
	return []Rule{{[]Stmt{MatchNew{}, Verdict{Jump, chain}}, fixed("only the first packets of a connection are looked at")}}
}

func fixedChains(node *ir.Node, family ir.Family) []Chain {
	refused := Verdict{Kind: Reject}
	noEndpoints := Rule{[]Stmt{lookup(NoEndpointIPs), refused}, fixed("frontends without endpoints are dropped, or refused")}
	others := Rule{[]Stmt{Verdict{Kind: Accept}}, fixed("what is not for a Service stays as it is")}
	return []Chain{
		{Name: chainServices, Rules: slices.Concat(
			[]Rule{{[]Stmt{lookup(ServiceIPs), Verdict{Goto, rootName(usualMarks(node), false)}}, fixed("addresses come before node ports")}},
			nodePortRules(node, family, ServicePorts, Verdict{Goto, rootName(markAll, true)}),
			[]Rule{others})},
		{Name: chainIPsBySource, Rules: append(bySource(node, InsideIPs, OutsideIPs), others)},
		{Name: chainPortsBySource, Rules: append(bySource(node, InsidePorts, OutsidePorts), others)},
		{Name: chainServiceEndpoints, Rules: append(nodePortRules(node, family, NoEndpointPorts, refused), noEndpoints)},
		{Name: chainClusterIPsCheck, Rules: append([]Rule{noEndpoints}, clusterIPsCheck(node)...)},
	}
}

// guardChains drop what loadBalancerSourceRanges do not admit. Services that have
// some share them.
func guardChains() []Chain {
	return []Chain{
		{Name: chainFilterPrerouting, Base: &Base{Hook: Prerouting, Priority: PriorityDNAT - 10}, Rules: ifNew(chainFirewallCheck)},
		{Name: chainFilterOutputPre, Base: &Base{Hook: Output, Priority: PriorityDNAT - 10}, Rules: ifNew(chainFirewallCheck)},
		{Name: chainFirewallCheck, Rules: []Rule{{[]Stmt{lookup(FirewallLists)}, fixed("what loadBalancerSourceRanges do not admit")}}},
	}
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
// affinity share them. By addresses a connection is asked first whether it went to one that
// has any, since all that are translated pass here. There is one rule for each protocol because
// nft 1.0.6 takes the original port of a connection only where the rule names the protocol.
func affinityChains(nodePort bool) []Chain {
	input, postrouting, common, set := chainAffinityInput, chainAffinityPostrouting, chainAffinity, AffinityIPs
	translated := []Stmt{MatchDNAT{}, MatchSet{Key: []Term{{Field: OrigDstAddr}}, Set: AffinityAddrs.String()}}
	key := []Term{{Field: DstAddr}, {Field: DstPort}, {Field: OrigDstAddr}, {Field: L4Proto}, {Field: OrigDstPort}}
	if nodePort {
		input, postrouting, common, set = chainAffinityPortsInput, chainAffinityPortsPostrouting, chainAffinityPorts, AffinityPorts
		translated, key = translated[:1], slices.Delete(key, 2, 3)
	}
	origin := fixed("remembered for session affinity")
	var rules []Rule
	for _, p := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		rules = append(rules, Rule{[]Stmt{MatchProto{p}, LookupVerdict{key, set.String()}}, origin})
	}
	enter := []Rule{{append(slices.Clip(translated), Verdict{Jump, common}), origin}}
	before := btoi(nodePort) // so that their order is known
	return []Chain{
		// Backends on the node itself are reached through input, not postrouting.
		{Name: input, Base: &Base{NAT: true, Hook: Input, Priority: PrioritySNAT - before}, Rules: enter},
		// Masquerading ends the walk through all chains of type nat, so this one comes before it.
		{Name: postrouting, Base: &Base{NAT: true, Hook: Postrouting, Priority: PrioritySNAT - 1 - before}, Rules: enter},
		{Name: common, Rules: rules},
	}
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

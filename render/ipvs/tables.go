package ipvs

import "github.com/proxyc/proxyc/ir"

// Tables gives the iptables part: the same rules whatever the Services, as a
// rule that looks into an empty set does nothing, but for outFilter.
func (n *Node) Tables(outFilter []Rule) []Table {
	tables := []Table{n.filter(outFilter), n.nat()}
	for _, t := range tables {
		for _, c := range t.Chains {
			for i := range c.Rules {
				if r := &c.Rules[i]; r.Origin == (ir.Origin{}) {
					r.Origin = ir.Origin{Object: "default", Reason: "every node in ipvs mode has it"}
				}
			}
		}
	}
	return tables
}

func jump(to, comment string, matches ...Match) Rule {
	return Rule{Matches: matches, Target: Target(to), Comment: comment}
}

func (n *Node) nat() Table {
	mark := n.node.MasqueradeMark()
	return Table{Name: "nat", Chains: []Chain{
		{Name: chainServices, Rules: n.services()},
		{Name: chainPostrouting, Rules: []Rule{
			{Matches: []Match{InSet{LoopBack, "dst,dst,src"}}, Target: Masquerade,
				Comment: "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"},
			{Matches: []Match{Marked{mark, true}}, Target: Return},
			{Target: ClearMark(mark)},
			{Target: MasqueradeRandom, Comment: "kubernetes service traffic requiring SNAT"},
		}},
		{Name: chainNodePort, Rules: nodePortRules()},
		{Name: chainLoadBalancer, Rules: []Rule{
			{Matches: []Match{InSet{LoadBalancerLocal, "dst,dst"}}, Target: Return,
				Comment: "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"},
			{Target: chainMarkMasq},
		}},
		{Name: chainMarkMasq, Rules: []Rule{
			{Target: SetMark(mark), Origin: ir.Origin{Object: "config", Field: "iptables.masqueradeBit"}},
		}},
		{Name: "OUTPUT", BuiltIn: true, Rules: []Rule{jump(chainServices, "kubernetes service portals")}},
		{Name: "PREROUTING", BuiltIn: true, Rules: []Rule{jump(chainServices, "kubernetes service portals")}},
		{Name: "POSTROUTING", BuiltIn: true, Rules: []Rule{jump(chainPostrouting, "kubernetes postrouting rules")}},
	}}
}

// services decides what is masqueraded. Every address of a Service is local
// (kube-ipvs0), so what has been decided leaves the chain before node ports
// are looked at: kube-proxy has these ACCEPTs last, and there a ClusterIP's
// port that equals some node port is masqueraded as that.
func (n *Node) services() []Rule {
	dst := func(s Set) Match { return InSet{s, "dst,dst"} }
	external := "Kubernetes service external ip + port for masquerade and filter purpose"
	local := "Kubernetes service external ip + port with externalTrafficPolicy=local"
	accept := func(s Set, comment string) []Rule {
		return []Rule{
			{Matches: []Match{dst(s), NotBridged{}, AddrType{Source: true, Not: true}}, Target: Accept, Comment: comment},
			{Matches: []Match{dst(s), AddrType{}}, Target: Accept, Comment: comment},
		}
	}
	rules := []Rule{
		{Matches: []Match{Source{Prefix: n.family.Loopback()}}, Target: Return},
		jump(chainLoadBalancer, "Kubernetes service lb portal", dst(LoadBalancer)),
		n.clusterIPs(),
		jump(chainMarkMasq, external, dst(ExternalIP)),
	}
	rules = append(rules, accept(ExternalIP, external)...)
	rules = append(rules, accept(ExternalIPLocal, local)...)
	return append(rules,
		Rule{Matches: []Match{dst(ClusterIP)}, Target: Accept},
		Rule{Matches: []Match{dst(LoadBalancer)}, Target: Accept},
		jump(chainNodePort, "", AddrType{}),
	)
}

// clusterIPs marks connections to ClusterIPs for masquerade: all, or those
// from outside the cluster, or, where that cannot be told, those that have a
// ClusterIP as their source: the kernel may take one from kube-ipvs0 for what
// the node itself sends.
func (n *Node) clusterIPs() Rule {
	rule := jump(chainMarkMasq, "Kubernetes service cluster ip + port for masquerade purpose", InSet{ClusterIP, "dst,dst"})
	if n.node.MasqueradeAll {
		rule.Origin = ir.Origin{Object: "config", Field: "iptables.masqueradeAll"}
		return rule
	}
	rule.Origin = n.node.Detector.Origin
	if m := notLocal(&n.node.Detector); m != nil {
		rule.Matches = append(rule.Matches, m)
	} else {
		rule.Matches[0] = InSet{ClusterIP, "src,dst"}
	}
	return rule
}

// notLocal matches what the detector does not take for a pod's; nil without a detector.
func notLocal(d *ir.Detector) Match {
	switch d.Mode {
	case ir.DetectCIDR:
		return Source{Prefix: d.Prefix, Not: true}
	case ir.DetectInterface:
		return Input{Interface: d.Interface, Not: true}
	case ir.DetectPrefix:
		return Input{Interface: d.Interface + "+", Not: true}
	}
	return nil
}

func nodePortRules() []Rule {
	var rules []Rule
	for _, p := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		all, local := nodePortSets(p)
		fields := "dst"
		if all.Type() == HashIPPort {
			fields = "dst,dst"
		}
		rules = append(rules,
			Rule{Matches: []Match{Protocol(p), InSet{local, fields}}, Target: Return,
				Comment: "Kubernetes nodeport " + p.String() + " port with externalTrafficPolicy=local"},
			jump(chainMarkMasq, "Kubernetes nodeport "+p.String()+" port for masquerade purpose",
				Protocol(p), InSet{all, fields}),
		)
	}
	return rules
}

func (n *Node) filter(outFilter []Rule) Table {
	dst := func(s Set) Match { return InSet{s, "dst,dst"} }
	health := InSet{HealthCheckNodePort, "dst"}
	ret := func(m Match) Rule { return Rule{Matches: []Match{m}, Target: Return} }
	return Table{Name: "filter", Chains: []Chain{
		{Name: chainForward, Rules: []Rule{
			{Matches: []Match{Marked{n.node.MasqueradeMark(), false}}, Target: Accept, Comment: "kubernetes forwarding rules"},
			{Matches: []Match{State("RELATED,ESTABLISHED")}, Target: Accept, Comment: "kubernetes forwarding conntrack rule"},
		}},
		{Name: chainNodePort, Rules: []Rule{
			{Matches: []Match{Protocol(ir.TCP), health}, Target: Accept, Comment: "Kubernetes health check node port"},
		}},
		{Name: chainFirewall, Rules: []Rule{
			jump(chainSourceRanges, "Kubernetes service load balancer ip + port for load balancer with sourceRange", dst(LoadBalancerFW)),
		}},
		{Name: chainSourceRanges, Rules: []Rule{
			{Matches: []Match{InSet{LoadBalancerSourceCIDR, "dst,dst,src"}}, Target: Return,
				Comment: "Kubernetes service load balancer ip + port + source cidr for packet filter"},
			{Matches: []Match{InSet{LoadBalancerSourceIP, "dst,dst,src"}}, Target: Return,
				Comment: "Kubernetes service load balancer ip + port + source IP for packet filter purpose"},
			{Target: Drop},
		}},
		// Ports of the host must not be reachable by way of a Service's address.
		{Name: chainFilter, Rules: []Rule{
			ret(dst(LoadBalancer)), ret(dst(ClusterIP)), ret(dst(ExternalIP)), ret(dst(ExternalIPLocal)),
			{Matches: []Match{Protocol(ir.TCP), health}, Target: Return},
			{Matches: []Match{State("NEW"), InSet{IPVSIPs, "dst"}}, Target: RejectPort},
		}},
		{Name: chainOutFilter, Rules: outFilter},
		{Name: "INPUT", BuiltIn: true, Rules: []Rule{
			jump(chainFirewall, "kube-proxy firewall rules"),
			jump(chainFilter, "kubernetes ipvs access filter"),
			jump(chainNodePort, "kubernetes health check rules"),
		}},
		{Name: "FORWARD", BuiltIn: true, Rules: []Rule{
			jump(chainFirewall, "kube-proxy firewall rules"),
			jump(chainForward, "kubernetes forwarding rules"),
		}},
		{Name: "OUTPUT", BuiltIn: true, Rules: []Rule{jump(chainOutFilter, "kubernetes ipvs access filter")}},
	}}
}

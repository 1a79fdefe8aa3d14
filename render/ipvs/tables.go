package ipvs

import (
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/xtables"
)

// Tables gives the iptables part: the same rules whatever the Services, as a
// rule that looks into an empty set does nothing, but for outFilter.
func (n *Node) Tables(outFilter []xtables.Rule) []xtables.Table {
	tables := []xtables.Table{n.filter(outFilter), n.nat()}
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

func rule(target xtables.Target, comment string, matches ...xtables.Match) xtables.Rule {
	return xtables.Rule{Matches: matches, Target: target, Comment: comment}
}

func jump(chain, comment string, matches ...xtables.Match) xtables.Rule {
	return rule(xtables.JumpTo(chain), comment, matches...)
}

func do(action xtables.Action) xtables.Target { return xtables.Target{Action: action} }

// in matches packets whose fields are in a set.
func (n *Node) in(s Set, fields string) xtables.Match {
	return xtables.InSet{Set: s.Name(n.family), Fields: fields}
}

// dst matches packets whose destination, address and port, is in a set.
func (n *Node) dst(s Set) xtables.Match { return n.in(s, "dst,dst") }

func (n *Node) nat() xtables.Table {
	mark := n.node.MasqueradeMark()
	markMasq := rule(xtables.Target{Action: xtables.SetMark, Mark: mark}, "")
	markMasq.Origin = ir.Origin{Object: "config", Field: "iptables.masqueradeBit"}
	return xtables.Table{Name: "nat", Chains: []xtables.Chain{
		{Name: chainServices, Rules: n.services()},
		{Name: chainPostrouting, Rules: []xtables.Rule{
			rule(do(xtables.Masquerade), "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
				n.in(LoopBack, "dst,dst,src")),
			rule(do(xtables.Return), "", xtables.Marked{Mark: mark, Not: true}),
			rule(xtables.Target{Action: xtables.ClearMark, Mark: mark}, ""),
			rule(xtables.Target{Action: xtables.Masquerade, Random: true}, "kubernetes service traffic requiring SNAT"),
		}},
		{Name: chainNodePort, Rules: n.nodePortRules()},
		{Name: chainLoadBalancer, Rules: []xtables.Rule{
			rule(do(xtables.Return), "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
				n.dst(LoadBalancerLocal)),
			jump(chainMarkMasq, ""),
		}},
		{Name: chainMarkMasq, Rules: []xtables.Rule{markMasq}},
		{Name: "OUTPUT", BuiltIn: true, Rules: []xtables.Rule{jump(chainServices, "kubernetes service portals")}},
		{Name: "PREROUTING", BuiltIn: true, Rules: []xtables.Rule{jump(chainServices, "kubernetes service portals")}},
		{Name: "POSTROUTING", BuiltIn: true, Rules: []xtables.Rule{jump(chainPostrouting, "kubernetes postrouting rules")}},
	}}
}

// services decides what is masqueraded. Every address of a Service is local
// (kube-ipvs0), so what has been decided leaves the chain before node ports
// are looked at: kube-proxy has these ACCEPTs last, and there a ClusterIP's
// port that equals some node port is masqueraded as that.
func (n *Node) services() []xtables.Rule {
	external := "Kubernetes service external ip + port for masquerade and filter purpose"
	local := "Kubernetes service external ip + port with externalTrafficPolicy=local"
	accept := func(s Set, comment string) []xtables.Rule {
		return []xtables.Rule{
			rule(do(xtables.Accept), comment, n.dst(s), xtables.NotBridged{}, xtables.AddrType{Source: true, Not: true}),
			rule(do(xtables.Accept), comment, n.dst(s), xtables.AddrType{}),
		}
	}
	rules := []xtables.Rule{
		rule(do(xtables.Return), "", xtables.Source{Prefix: n.family.Loopback()}),
		jump(chainLoadBalancer, "Kubernetes service lb portal", n.dst(LoadBalancer)),
		n.clusterIPs(),
		jump(chainMarkMasq, external, n.dst(ExternalIP)),
	}
	rules = append(rules, accept(ExternalIP, external)...)
	rules = append(rules, accept(ExternalIPLocal, local)...)
	return append(rules,
		rule(do(xtables.Accept), "", n.dst(ClusterIP)),
		rule(do(xtables.Accept), "", n.dst(LoadBalancer)),
		jump(chainNodePort, "", xtables.AddrType{}),
	)
}

// clusterIPs marks connections to ClusterIPs for masquerade: all, or those
// from outside the cluster, or, where that cannot be told, those that have a
// ClusterIP as their source: the kernel may take one from kube-ipvs0 for what
// the node itself sends.
func (n *Node) clusterIPs() xtables.Rule {
	r := jump(chainMarkMasq, "Kubernetes service cluster ip + port for masquerade purpose", n.dst(ClusterIP))
	if n.node.MasqueradeAll {
		r.Origin = ir.Origin{Object: "config", Field: "iptables.masqueradeAll"}
		return r
	}
	r.Origin = n.node.Detector.Origin
	if m := notLocal(&n.node.Detector); m != nil {
		r.Matches = append(r.Matches, m)
	} else {
		r.Matches[0] = n.in(ClusterIP, "src,dst")
	}
	return r
}

// notLocal matches what the detector does not take for a pod's; nil without a detector.
func notLocal(d *ir.Detector) xtables.Match {
	switch d.Mode {
	case ir.DetectCIDR:
		return xtables.Source{Prefix: d.Prefix, Not: true}
	case ir.DetectInterface:
		return xtables.Input{Interface: d.Interface, Not: true}
	case ir.DetectPrefix:
		return xtables.Input{Interface: d.Interface + "+", Not: true}
	}
	return nil
}

func (n *Node) nodePortRules() []xtables.Rule {
	var rules []xtables.Rule
	for _, p := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		all, local := nodePortSets(p)
		fields := "dst"
		if all.Type() == HashIPPort {
			fields = "dst,dst"
		}
		rules = append(rules,
			rule(do(xtables.Return), "Kubernetes nodeport "+p.String()+" port with externalTrafficPolicy=local",
				xtables.Protocol(p), n.in(local, fields)),
			jump(chainMarkMasq, "Kubernetes nodeport "+p.String()+" port for masquerade purpose",
				xtables.Protocol(p), n.in(all, fields)),
		)
	}
	return rules
}

func (n *Node) filter(outFilter []xtables.Rule) xtables.Table {
	health := []xtables.Match{xtables.Protocol(ir.TCP), n.in(HealthCheckNodePort, "dst")}
	known := func(s Set) xtables.Rule { return rule(do(xtables.Return), "", n.dst(s)) }
	return xtables.Table{Name: "filter", Chains: []xtables.Chain{
		{Name: chainForward, Rules: []xtables.Rule{
			rule(do(xtables.Accept), "kubernetes forwarding rules", xtables.Marked{Mark: n.node.MasqueradeMark()}),
			rule(do(xtables.Accept), "kubernetes forwarding conntrack rule", xtables.State("RELATED,ESTABLISHED")),
		}},
		{Name: chainNodePort, Rules: []xtables.Rule{
			rule(do(xtables.Accept), "Kubernetes health check node port", health...),
		}},
		{Name: chainFirewall, Rules: []xtables.Rule{
			jump(chainSourceRanges, "Kubernetes service load balancer ip + port for load balancer with sourceRange",
				n.dst(LoadBalancerFW)),
		}},
		{Name: chainSourceRanges, Rules: []xtables.Rule{
			rule(do(xtables.Return), "Kubernetes service load balancer ip + port + source cidr for packet filter",
				n.in(LoadBalancerSourceCIDR, "dst,dst,src")),
			rule(do(xtables.Return), "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
				n.in(LoadBalancerSourceIP, "dst,dst,src")),
			rule(do(xtables.Drop), ""),
		}},
		// Ports of the host must not be reachable by way of a Service's address.
		{Name: chainFilter, Rules: []xtables.Rule{
			known(LoadBalancer), known(ClusterIP), known(ExternalIP), known(ExternalIPLocal),
			rule(do(xtables.Return), "", health...),
			rule(do(xtables.Reject), "", xtables.State("NEW"), n.in(IPVSIPs, "dst")),
		}},
		{Name: chainOutFilter, Rules: outFilter},
		{Name: "INPUT", BuiltIn: true, Rules: []xtables.Rule{
			jump(chainFirewall, "kube-proxy firewall rules"),
			jump(chainFilter, "kubernetes ipvs access filter"),
			jump(chainNodePort, "kubernetes health check rules"),
		}},
		{Name: "FORWARD", BuiltIn: true, Rules: []xtables.Rule{
			jump(chainFirewall, "kube-proxy firewall rules"),
			jump(chainForward, "kubernetes forwarding rules"),
		}},
		{Name: "OUTPUT", BuiltIn: true, Rules: []xtables.Rule{jump(chainOutFilter, "kubernetes ipvs access filter")}},
	}}
}

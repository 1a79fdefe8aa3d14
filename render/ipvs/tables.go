package ipvs

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Rules returns the iptables part. The rules do not depend on the Services,
// because a rule with an empty set has no effect, except for outFilter.
func (n *Node) Rules(outFilter []iptables.Rule) *iptables.Ruleset {
	return &iptables.Ruleset{Family: n.family, Filter: n.filter(outFilter), Nat: n.nat()}
}

// fixed sets the reason for a rule that every node has.
func fixed(r iptables.Rule) iptables.Rule {
	r.CommentLast = true
	return r.Because(&ir.Origin{Object: "default", Reason: "every node in ipvs mode has it"})
}

func jump(chain string, r iptables.Rule) iptables.Rule {
	r.Target, r.Chain = iptables.Jump, chain
	return fixed(r)
}

func do(target iptables.Target, r iptables.Rule) iptables.Rule {
	r.Target = target
	return fixed(r)
}

func builtInJump(builtIn, chain, comment string) iptables.BuiltInJump {
	return iptables.BuiltInJump{Chain: builtIn, Rule: jump(chain, iptables.Rule{Comment: comment})}
}

// in returns a match for packets with fields in a set.
func (n *Node) in(s Set, fields string) iptables.Rare {
	return iptables.InSet{Set: s.Name(n.family), Fields: fields}
}

// dst returns a match for packets whose destination address and port are in a
// set.
func (n *Node) dst(s Set) iptables.Rare { return n.in(s, "dst,dst") }

func (n *Node) nat() iptables.Table {
	mark := n.node.MasqueradeMark()
	markMasq := do(iptables.SetMark, iptables.Rule{XMark: iptables.Mark{Value: mark, Mask: mark}}).
		Because(&ir.Origin{Object: "config", Field: "iptables.masqueradeBit"})
	return iptables.Table{Name: "nat", Chains: []iptables.Chain{
		{Name: iptables.ChainServices, Rules: n.services()},
		{Name: iptables.ChainPostrouting, Rules: []iptables.Rule{
			do(iptables.Masquerade, iptables.Rule{Rare: n.in(LoopBack, "dst,dst,src"),
				Comment: "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"}),
			do(iptables.Return, iptables.Rule{Not: iptables.MarkMatch, Mark: iptables.Mark{Value: mark, Mask: mark}}),
			do(iptables.SetMark, iptables.Rule{XMark: iptables.Mark{Value: mark}}),
			do(iptables.Masquerade, iptables.Rule{RandomFully: true, Comment: "kubernetes service traffic requiring SNAT"}),
		}},
		{Name: iptables.ChainNodePort, Rules: n.nodePortRules()},
		{Name: iptables.ChainLoadBalancer, Rules: []iptables.Rule{
			do(iptables.Return, iptables.Rule{Rare: n.dst(LoadBalancerLocal),
				Comment: "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"}),
			jump(iptables.ChainMarkMasq, iptables.Rule{}),
		}},
		{Name: iptables.ChainMarkMasq, Rules: []iptables.Rule{markMasq}},
	}, Jumps: []iptables.BuiltInJump{
		builtInJump("POSTROUTING", iptables.ChainPostrouting, "kubernetes postrouting rules"),
		builtInJump("PREROUTING", iptables.ChainServices, "kubernetes service portals"),
		builtInJump("OUTPUT", iptables.ChainServices, "kubernetes service portals"),
	}}
}

// services returns the rules that decide about masquerading. Every address of a
// Service is local (kube-ipvs0), so decided packets leave the chain before the
// rules for node ports. In kube-proxy these ACCEPT rules are last, so a
// ClusterIP's port that equals some node port is masqueraded like that.
func (n *Node) services() []iptables.Rule {
	external := "Kubernetes service external ip + port for masquerade and filter purpose"
	local := "Kubernetes service external ip + port with externalTrafficPolicy=local"
	accept := func(s Set, comment string) []iptables.Rule {
		return []iptables.Rule{
			do(iptables.Accept, iptables.Rule{Rare: n.dst(s), Not: iptables.SrcType | iptables.Bridged, SrcLocal: true, Comment: comment}),
			do(iptables.Accept, iptables.Rule{Rare: n.dst(s), DstLocal: true, Comment: comment}),
		}
	}
	return slices.Concat(
		[]iptables.Rule{
			do(iptables.Return, iptables.Rule{Src: n.family.Loopback()}),
			jump(iptables.ChainLoadBalancer, iptables.Rule{Rare: n.dst(LoadBalancer), Comment: "Kubernetes service lb portal"}),
		},
		n.clusterIPs(),
		[]iptables.Rule{jump(iptables.ChainMarkMasq, iptables.Rule{Rare: n.dst(ExternalIP), Comment: external})},
		accept(ExternalIP, external),
		accept(ExternalIPLocal, local),
		[]iptables.Rule{
			do(iptables.Accept, iptables.Rule{Rare: n.dst(ClusterIP)}),
			do(iptables.Accept, iptables.Rule{Rare: n.dst(LoadBalancer)}),
			jump(iptables.ChainNodePort, iptables.Rule{DstLocal: true}),
		})
}

// clusterIPs returns the rules that mark connections to ClusterIPs for
// masquerade: all, or those from outside the cluster. Without detection of pods,
// they mark only connections with a ClusterIP as source, which the kernel may
// choose from kube-ipvs0 for packets from the node.
func (n *Node) clusterIPs() []iptables.Rule {
	r := jump(iptables.ChainMarkMasq, iptables.Rule{
		Rare: n.dst(ClusterIP), Comment: "Kubernetes service cluster ip + port for masquerade purpose",
	})
	d := &n.node.Detector
	switch {
	case n.node.MasqueradeAll:
		return []iptables.Rule{r.Because(&ir.Origin{Object: "config", Field: "iptables.masqueradeAll"})}
	case d.Mode == ir.DetectNone:
		r.Rare = n.in(ClusterIP, "src,dst")
	case !r.Detect(d, true):
		return nil
	}
	return []iptables.Rule{r.Because(&d.Origin)}
}

func (n *Node) nodePortRules() []iptables.Rule {
	var rules []iptables.Rule
	for _, p := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		all, local := nodePortSets(p)
		fields := "dst"
		if all.Type() == HashIPPort {
			fields = "dst,dst"
		}
		rules = append(rules,
			do(iptables.Return, iptables.Rule{Protocol: p, Rare: n.in(local, fields),
				Comment: "Kubernetes nodeport " + p.String() + " port with externalTrafficPolicy=local"}),
			jump(iptables.ChainMarkMasq, iptables.Rule{Protocol: p, Rare: n.in(all, fields),
				Comment: "Kubernetes nodeport " + p.String() + " port for masquerade purpose"}),
		)
	}
	return rules
}

func (n *Node) filter(outFilter []iptables.Rule) iptables.Table {
	mark := n.node.MasqueradeMark()
	health := iptables.Rule{Protocol: ir.TCP, Rare: n.in(HealthCheckNodePort, "dst")}
	checks := health
	checks.Comment = "Kubernetes health check node port"
	known := func(s Set) iptables.Rule { return do(iptables.Return, iptables.Rule{Rare: n.dst(s)}) }
	return iptables.Table{Name: "filter", Chains: []iptables.Chain{
		{Name: iptables.ChainForward, Rules: []iptables.Rule{
			do(iptables.Accept, iptables.Rule{Mark: iptables.Mark{Value: mark, Mask: mark}, Comment: "kubernetes forwarding rules"}),
			do(iptables.Accept, iptables.Rule{States: iptables.Related | iptables.Established, Comment: "kubernetes forwarding conntrack rule"}),
		}},
		{Name: iptables.ChainNodePort, Rules: []iptables.Rule{do(iptables.Accept, checks)}},
		{Name: iptables.ChainProxyFW, Rules: []iptables.Rule{
			jump(iptables.ChainSourceRanges, iptables.Rule{Rare: n.dst(LoadBalancerFW),
				Comment: "Kubernetes service load balancer ip + port for load balancer with sourceRange"}),
		}},
		{Name: iptables.ChainSourceRanges, Rules: []iptables.Rule{
			do(iptables.Return, iptables.Rule{Rare: n.in(LoadBalancerSourceCIDR, "dst,dst,src"),
				Comment: "Kubernetes service load balancer ip + port + source cidr for packet filter"}),
			do(iptables.Return, iptables.Rule{Rare: n.in(LoadBalancerSourceIP, "dst,dst,src"),
				Comment: "Kubernetes service load balancer ip + port + source IP for packet filter purpose"}),
			do(iptables.Drop, iptables.Rule{}),
		}},
		// Ports of the host must not be reachable through a Service's address.
		{Name: iptables.ChainIPVSFilter, Rules: []iptables.Rule{
			known(LoadBalancer), known(ClusterIP), known(ExternalIP), known(ExternalIPLocal),
			do(iptables.Return, health),
			do(iptables.Reject, iptables.Rule{States: iptables.New, Rare: n.in(IPVSIPs, "dst")}),
		}},
		{Name: iptables.ChainIPVSOutFilter, Rules: outFilter},
	}, Jumps: []iptables.BuiltInJump{
		builtInJump("OUTPUT", iptables.ChainIPVSOutFilter, "kubernetes ipvs access filter"),
		builtInJump("FORWARD", iptables.ChainProxyFW, "kube-proxy firewall rules"),
		builtInJump("FORWARD", iptables.ChainForward, "kubernetes forwarding rules"),
		builtInJump("INPUT", iptables.ChainProxyFW, "kube-proxy firewall rules"),
		builtInJump("INPUT", iptables.ChainIPVSFilter, "kubernetes ipvs access filter"),
		builtInJump("INPUT", iptables.ChainNodePort, "kubernetes health check rules"),
	}}
}

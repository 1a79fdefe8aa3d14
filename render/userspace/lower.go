package userspace

import (
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/xtables"
)

// Lower turns a Program into the Ruleset of its family.
func Lower(p *ir.Program) *Ruleset {
	ports, unserved := AssignPorts(p)
	n := LowerNode(p.Family, &p.Node)
	var all Fragment
	for i := range p.Services {
		all.append(n.LowerService(&p.Services[i], ports))
	}
	slices.SortFunc(all.Listeners, func(a, b Listener) int { return a.Port.Compare(b.Port) })
	r := &Ruleset{
		Family: p.Family, Tables: n.Tables(&all), Listeners: all.Listeners, Unserved: unserved,
		DialTimeouts: []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second},
	}
	if p.Node.Userspace != nil {
		r.UDPIdle = p.Node.Userspace.UDPIdleTimeout
	}
	return r
}

// Node is what all Services of one family share.
type Node struct {
	family ir.Family
	node   *ir.Node
	bind   netip.Addr // where proxy ports listen
}

// LowerNode prepares the lowering of a node's Services.
func LowerNode(f ir.Family, n *ir.Node) *Node {
	x := &Node{family: f, node: n, bind: netip.IPv4Unspecified()}
	if f == ir.IPv6 {
		x.bind = netip.IPv6Unspecified()
	}
	if n.Userspace != nil && f.Has(n.Userspace.BindAddress) {
		x.bind = n.Userspace.BindAddress
	}
	return x
}

// LowerService gives what one Service adds; a service port without a proxy
// port in ports adds nothing.
func (n *Node) LowerService(s *ir.Service, ports Ports) Fragment {
	var x Fragment
	for i := range s.Frontends {
		f := &s.Frontends[i]
		port, ok := ports[f.Port]
		if !ok {
			continue
		}
		l := x.listener(n, s, f.Port, port)
		if n.holds(f) {
			l.Hold = append(l.Hold, netip.AddrPortFrom(n.holdAddr(f), f.Match.Port))
		}
		if f.Match.NodeAddrs() {
			x.nodePort(n, f, port)
		} else {
			x.portal(n, f, port)
		}
	}
	return x
}

// listener finds or makes the listener of a service port.
func (x *Fragment) listener(n *Node, s *ir.Service, name ir.ServicePort, port uint16) *Listener {
	i := slices.IndexFunc(x.Listeners, func(l Listener) bool { return l.Port == name })
	if i >= 0 {
		return &x.Listeners[i]
	}
	l := Listener{Port: name, Listen: netip.AddrPortFrom(n.bind, port), Origin: s.Origin}
	if i := slices.IndexFunc(s.Pools, func(p ir.Pool) bool { return p.Port == name }); i >= 0 {
		p := &s.Pools[i]
		l.Origin = p.Origin
		for _, b := range p.Backends {
			l.Backends = append(l.Backends, b.AddrPort)
			l.origins = append(l.origins, b.Origin)
		}
		if p.Affinity != nil {
			l.Affinity = p.Affinity.Timeout
		}
	}
	x.Listeners = append(x.Listeners, l)
	return &x.Listeners[len(x.Listeners)-1]
}

// holds tells whether a frontend's port is one that others on the node could take.
func (n *Node) holds(f *ir.Frontend) bool {
	return f.Match.NodeAddrs() || f.Kind == ir.ExternalIP && n.node.HasAddr(f.Match.Addr)
}

func (n *Node) holdAddr(f *ir.Frontend) netip.Addr {
	switch {
	case !f.Match.NodeAddrs():
		return f.Match.Addr
	case n.family == ir.IPv6:
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// toContainer is the target of what comes in: the port alone where the proxy
// listens on every address.
func (n *Node) toContainer(port uint16) xtables.Target {
	if n.bind.IsUnspecified() {
		return xtables.Target{Action: xtables.Redirect, To: netip.AddrPortFrom(n.bind, port)}
	}
	return xtables.Target{Action: xtables.DNAT, To: netip.AddrPortFrom(n.bind, port)}
}

// toHost is the target of what the node sends: its own address, as a redirect
// would lead to loopback and leave the client a source that is of no use there.
func (n *Node) toHost(port uint16) xtables.Target {
	if n.bind.IsUnspecified() && n.node.IP.IsValid() {
		return xtables.Target{Action: xtables.DNAT, To: netip.AddrPortFrom(n.node.IP, port)}
	}
	return n.toContainer(port)
}

func serve(f *ir.Frontend, to xtables.Target, matches ...xtables.Match) xtables.Rule {
	return xtables.Rule{Matches: matches, Target: to, Comment: f.Port.String(), Port: f.Port, Frontend: f.Match, Origin: f.Origin}
}

// portal leads an address of a Service to its proxy port. Of connections to
// external addresses those from containers behind a bridge are left to find
// their way through the outside, unless the address is the node's own.
func (x *Fragment) portal(n *Node, f *ir.Frontend, port uint16) {
	match := func(more ...xtables.Match) []xtables.Match { return append(xtables.To(f.Match), more...) }
	x.PortalsHost = append(x.PortalsHost, serve(f, n.toHost(port), match()...))
	in := n.toContainer(port)
	if !f.Kind.External() {
		x.PortalsContainer = append(x.PortalsContainer, serve(f, in, match()...))
		return
	}
	x.PortalsContainer = append(x.PortalsContainer,
		serve(f, in, match(xtables.NotBridged{}, xtables.AddrType{Source: true, Not: true})...),
		serve(f, in, match(xtables.AddrType{})...))
}

// nodePort leads a node port to its proxy port, and lets that in.
func (x *Fragment) nodePort(n *Node, f *ir.Frontend, port uint16) {
	match := xtables.Port{Protocol: f.Match.Protocol, Number: f.Match.Port}
	proxy := xtables.Port{Protocol: f.Match.Protocol, Number: port}
	x.NodePortContainer = append(x.NodePortContainer, serve(f, n.toContainer(port), match))
	x.NodePortHost = append(x.NodePortHost, serve(f, n.toHost(port), match))
	x.NodePortNonLocal = append(x.NodePortNonLocal,
		serve(f, xtables.Target{Action: xtables.Accept}, proxy, xtables.State("NEW")))
}

// Tables puts the fixed rules around those of the Services.
func (n *Node) Tables(x *Fragment) []xtables.Table {
	tables := []xtables.Table{
		{Name: "filter", Chains: []xtables.Chain{
			{Name: chainNodePortNonLocal, Rules: x.NodePortNonLocal},
			builtIn("INPUT", jump(chainNodePortNonLocal, "Ensure that non-local NodePort traffic can flow")),
		}},
		{Name: "nat", Chains: []xtables.Chain{
			{Name: chainPortalsContainer, Rules: x.PortalsContainer},
			{Name: chainPortalsHost, Rules: x.PortalsHost},
			{Name: chainNodePortContainer, Rules: n.notLoopback(x.NodePortContainer)},
			{Name: chainNodePortHost, Rules: n.notLoopback(x.NodePortHost)},
			builtIn("PREROUTING", append([]xtables.Rule{jump(chainPortalsContainer, "handle ClusterIPs; NOTE: this must be before the NodePort rules")},
				n.toNodePorts(chainNodePortContainer)...)...),
			builtIn("OUTPUT", append([]xtables.Rule{jump(chainPortalsHost, "handle ClusterIPs; NOTE: this must be before the NodePort rules")},
				n.toNodePorts(chainNodePortHost)...)...),
		}},
	}
	return tables
}

func builtIn(name string, rules ...xtables.Rule) xtables.Chain {
	return xtables.Chain{Name: name, BuiltIn: true, Rules: rules}
}

var fixed = ir.Origin{Object: "default", Reason: "every node in userspace mode has it"}

func jump(chain, comment string, matches ...xtables.Match) xtables.Rule {
	return xtables.Rule{Matches: matches, Target: xtables.JumpTo(chain), Comment: comment, Origin: fixed}
}

// toNodePorts gives the jumps for the addresses on which node ports answer.
func (n *Node) toNodePorts(chain string) []xtables.Rule {
	const comment = "handle service NodePorts; NOTE: this must be the last rule in the chain"
	nodePorts := &n.node.NodePorts
	var rules []xtables.Rule
	if nodePorts.All {
		rules = append(rules, jump(chain, comment, xtables.AddrType{}))
	}
	for _, p := range nodePorts.Prefixes {
		matches := []xtables.Match{xtables.Destination(p.Prefix)}
		if p.Assigned {
			matches = append(matches, xtables.AddrType{})
		}
		rules = append(rules, jump(chain, comment, matches...))
	}
	for i := range rules {
		rules[i].Origin = nodePorts.Origin
	}
	return rules
}

// notLoopback leaves loopback addresses alone: the answer would find no way
// back to a client at one (USR-7).
func (n *Node) notLoopback(rules []xtables.Rule) []xtables.Rule {
	return append([]xtables.Rule{{
		Matches: []xtables.Match{xtables.Destination(n.family.Loopback())},
		Target:  xtables.Target{Action: xtables.Return},
		Origin:  fixed,
	}}, rules...)
}

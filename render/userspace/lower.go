package userspace

import (
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// DialTimeouts returns the timeout of each attempt to connect to a backend
// (USR-5).
func DialTimeouts() []time.Duration {
	return []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
}

// Lower lowers a Program to the Ruleset of its family.
func Lower(p *ir.Program) *Ruleset {
	ports, unserved := AssignPorts(p, nil)
	n := LowerNode(p.Family, &p.Node)
	var all Fragment
	for i := range p.Services {
		all.Append(n.LowerService(&p.Services[i], ports))
	}
	slices.SortFunc(all.Listeners, func(a, b Listener) int { return a.Port.Compare(b.Port) })
	r := &Ruleset{
		Family: p.Family, Rules: n.Rules(&all), Listeners: all.Listeners, Unserved: unserved,
		DialTimeouts: DialTimeouts(),
	}
	if p.Node.Userspace != nil {
		r.UDPIdle = p.Node.Userspace.UDPIdleTimeout
	}
	return r
}

// Node is the part that all Services of one family share.
type Node struct {
	family ir.Family
	node   *ir.Node
	bind   netip.Addr // address of proxy ports
}

// LowerNode prepares the lowering of a node's Services.
func LowerNode(f ir.Family, n *ir.Node) *Node {
	x := &Node{family: f, node: n, bind: f.Any().Addr()}
	if n.Userspace != nil && f.Has(n.Userspace.BindAddress) {
		x.bind = n.Userspace.BindAddress
	}
	return x
}

// LowerService returns the Fragment of one Service. It omits service ports
// without a proxy port in ports.
func (n *Node) LowerService(s *ir.Service, ports Ports) Fragment {
	var x Fragment
	listeners := map[ir.ServicePort]int{} // index in x
	for i := range s.Frontends {
		f := &s.Frontends[i]
		port, ok := ports[f.Port]
		if !ok {
			continue
		}
		at, made := listeners[f.Port]
		if !made {
			at = len(x.Listeners)
			listeners[f.Port] = at
			x.Listeners = append(x.Listeners, n.listener(s, f.Port, port))
		}
		if l := &x.Listeners[at]; n.holds(f) {
			l.Reserved = append(l.Reserved, netip.AddrPortFrom(n.holdAddr(f), f.Match.Port))
		}
		if f.Match.IsNodePort() {
			x.nodePort(n, f, port)
		} else {
			x.portal(n, f, port)
		}
	}
	return x
}

// listener returns the listener of a service port.
func (n *Node) listener(s *ir.Service, name ir.ServicePort, port uint16) Listener {
	l := Listener{Port: name, Listen: netip.AddrPortFrom(n.bind, port), Origin: s.Origin}
	i, found := slices.BinarySearchFunc(s.Pools, name, func(p ir.Pool, name ir.ServicePort) int { return p.Port.Compare(name) })
	if !found {
		return l
	}
	l.forwardTo(&s.Pools[i])
	return l
}

// forwardTo sets the backends of a listener from a pool.
func (l *Listener) forwardTo(p *ir.Pool) {
	l.Origin = p.Origin
	for _, b := range p.Backends {
		l.Backends = append(l.Backends, b.AddrPort)
		l.origins = append(l.origins, b.Origin)
	}
	if p.Affinity != nil {
		l.Affinity = p.Affinity.Timeout
	}
}

// holds reports whether another program on the node could bind the frontend's
// port.
func (n *Node) holds(f *ir.Frontend) bool {
	return f.Match.IsNodePort() || f.Kind == ir.ExternalIP && n.node.HasAddr(f.Match.Addr)
}

func (n *Node) holdAddr(f *ir.Frontend) netip.Addr {
	if !f.Match.IsNodePort() {
		return f.Match.Addr
	}
	return n.family.Any().Addr()
}

// toContainer redirects received packets to a proxy port. It changes only the
// port if the proxy listens on every address.
func (n *Node) toContainer(r iptables.Rule, port uint16) iptables.Rule {
	if n.bind.IsUnspecified() {
		r.Target, r.To = iptables.Redirect, netip.AddrPortFrom(netip.Addr{}, port)
		return r
	}
	r.Target, r.To = iptables.DNAT, netip.AddrPortFrom(n.bind, port)
	return r
}

// toHost redirects packets from the node to its own address. A redirect would
// change the destination to loopback, where the source of the client is invalid.
func (n *Node) toHost(r iptables.Rule, port uint16) iptables.Rule {
	if n.bind.IsUnspecified() && n.node.IP.IsValid() {
		r.Target, r.To = iptables.DNAT, netip.AddrPortFrom(n.node.IP, port)
		return r
	}
	return n.toContainer(r, port)
}

// serve returns a rule for packets to a port, and to an address if it is valid.
func serve(f *ir.Frontend, addr netip.Addr, port uint16) iptables.Rule {
	r := iptables.Rule{Protocol: f.Match.Protocol, Ports: iptables.Port(port), Comment: f.Port.String(), CommentLast: true}
	if addr.IsValid() {
		r.Dst = netip.PrefixFrom(addr, addr.BitLen())
	}
	return r.For(f)
}

// portal redirects an address of a Service to its proxy port. Connections to
// external IPs from containers behind a bridge are not redirected unless the
// address is the node's own, so that they leave the node.
func (x *Fragment) portal(n *Node, f *ir.Frontend, port uint16) {
	match := serve(f, f.Match.Addr, f.Match.Port)
	x.PortalsHost = append(x.PortalsHost, n.toHost(match, port))
	in := n.toContainer(match, port)
	if f.Kind != ir.ExternalIP {
		x.PortalsContainer = append(x.PortalsContainer, in)
		return
	}
	outside, own := in, in
	outside.Not, outside.SrcLocal = iptables.SrcType|iptables.Bridged, true
	own.DstLocal = true
	x.PortalsContainer = append(x.PortalsContainer, outside, own)
}

// nodePort redirects a node port to its proxy port and accepts connections to the
// latter.
func (x *Fragment) nodePort(n *Node, f *ir.Frontend, port uint16) {
	match := serve(f, netip.Addr{}, f.Match.Port)
	x.NodePortContainer = append(x.NodePortContainer, n.toContainer(match, port))
	x.NodePortHost = append(x.NodePortHost, n.toHost(match, port))
	proxy := serve(f, netip.Addr{}, port)
	proxy.States, proxy.Target = iptables.New, iptables.Accept
	x.NodePortNonLocal = append(x.NodePortNonLocal, proxy)
}

// Rules combines the fixed rules and those of the Services.
func (n *Node) Rules(x *Fragment) *iptables.Ruleset {
	const first = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
	host := x.NodePortHost
	if !n.node.NodePorts.Loopback {
		host = n.notLoopback(host)
	}
	return &iptables.Ruleset{Family: n.family,
		Filter: iptables.Table{Name: "filter", Chains: []iptables.Chain{
			{Name: iptables.ChainNodePortNonLocal, Rules: append(slices.Clip(x.NodePortNonLocal), tracked())},
		}, Jumps: []iptables.BuiltInJump{
			{Chain: "INPUT", Rule: jump(iptables.ChainNodePortNonLocal, "Ensure that non-local NodePort traffic can flow")},
		}},
		Nat: iptables.Table{Name: "nat", Chains: []iptables.Chain{
			{Name: iptables.ChainPortalsContainer, Rules: x.PortalsContainer},
			{Name: iptables.ChainPortalsHost, Rules: x.PortalsHost},
			{Name: iptables.ChainNodePortContainer, Rules: n.notLoopback(x.NodePortContainer)},
			{Name: iptables.ChainNodePortHost, Rules: host},
		}, Jumps: slices.Concat(
			builtInJumps("OUTPUT", jump(iptables.ChainPortalsHost, first)),
			builtInJumps("OUTPUT", n.toNodePorts(iptables.ChainNodePortHost)...),
			builtInJumps("PREROUTING", jump(iptables.ChainPortalsContainer, first)),
			builtInJumps("PREROUTING", n.toNodePorts(iptables.ChainNodePortContainer)...),
		)},
	}
}

func builtInJumps(builtIn string, rules ...iptables.Rule) (jumps []iptables.BuiltInJump) {
	for _, r := range rules {
		jumps = append(jumps, iptables.BuiltInJump{Chain: builtIn, Rule: r})
	}
	return jumps
}

// fixed sets the reason for a rule that every node has.
func fixed(r iptables.Rule) iptables.Rule {
	r.CommentLast = true
	return r.Because(&ir.Origin{Object: "default", Reason: "every node in userspace mode has it"})
}

// tracked returns a rule without effect on packets. The kernel tracks connections
// only while a rule requires it. Existing connections must still be translated
// after the last Service is removed.
func tracked() iptables.Rule {
	return fixed(iptables.Rule{States: iptables.Established, Target: iptables.Return, Comment: "connections under way outlive their Services"})
}

func jump(chain, comment string) iptables.Rule {
	return fixed(iptables.Rule{Target: iptables.Jump, Chain: chain, Comment: comment})
}

// toNodePorts returns the jumps for the addresses on which node ports answer.
func (n *Node) toNodePorts(chain string) []iptables.Rule {
	nodePorts := &n.node.NodePorts
	r := jump(chain, "handle service NodePorts; NOTE: this must be the last rule in the chain").Because(&nodePorts.Origin)
	var rules []iptables.Rule
	if nodePorts.All {
		r.DstLocal = true
		rules = append(rules, r)
	}
	for _, p := range nodePorts.Prefixes {
		r.Dst, r.DstLocal = iptables.Prefix(p.Prefix), p.Assigned
		rules = append(rules, r)
	}
	return rules
}

// notLoopback excludes loopback addresses from rules. The kernel accepts no such
// packets from outside.
func (n *Node) notLoopback(rules []iptables.Rule) []iptables.Rule {
	return append([]iptables.Rule{fixed(iptables.Rule{Dst: n.family.Loopback(), Target: iptables.Return})}, rules...)
}

package ipvs

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Lower lowers a Program to the Ruleset of its family.
func Lower(p *ir.Program) *Ruleset {
	n := LowerNode(p.Family, &p.Node)
	r := &Ruleset{Family: p.Family}
	if p.Node.IPVS != nil {
		r.ExcludeCIDRs = p.Node.IPVS.ExcludeCIDRs
	}
	var out []iptables.Rule
	for i := range p.Services {
		f := n.LowerService(&p.Services[i])
		r.VirtualServers = append(r.VirtualServers, f.VirtualServers...)
		r.Elements = append(r.Elements, f.Elements...)
		out = append(out, f.OutFilter...)
	}
	r.Rules = n.Rules(out)
	r.canon()
	return r
}

// Node is the part that all Services of one family share.
type Node struct {
	family    ir.Family
	node      *ir.Node
	scheduler string
	flags     Flags
	nodePorts []netip.Addr
}

// LowerNode prepares the lowering of a node's Services.
func LowerNode(f ir.Family, n *ir.Node) *Node {
	x := &Node{family: f, node: n, scheduler: DefaultScheduler, nodePorts: nodePortAddrs(n)}
	if n.IPVS != nil && n.IPVS.Scheduler != "" {
		name, flags, _ := ir.ParseScheduler(n.IPVS.Scheduler)
		x.scheduler, x.flags = name, Flags(flags)
	}
	return x
}

// nodePortAddrs returns the addresses with a virtual server for each node port.
// Loopback addresses are excluded, and IPv6 link-local ones unless
// nodePortAddresses names them (IPV-3).
func nodePortAddrs(n *ir.Node) []netip.Addr {
	addrs := slices.DeleteFunc(slices.Clone(n.Addrs), func(a netip.Addr) bool {
		return !n.NodePorts.Has(a, true) || n.NodePorts.All && a.IsLinkLocalUnicast() && a.Is6()
	})
	for _, p := range n.NodePorts.Prefixes {
		if !p.Assigned && p.Prefix.IsSingleIP() && !p.Prefix.Addr().IsLoopback() {
			addrs = append(addrs, p.Prefix.Addr())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// LowerService returns the Fragment of one Service.
func (n *Node) LowerService(s *ir.Service) Fragment {
	var x Fragment
	for i := range s.Pools {
		x.hairpin(&s.Pools[i])
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		for _, addr := range n.addrs(f) {
			x.VirtualServers = append(x.VirtualServers, n.virtualServer(s, f, addr))
		}
		if f.Match.IsNodePort() {
			x.nodePort(f, n)
			continue
		}
		x.frontend(f)
		if f.Kind == ir.ClusterIP || !n.node.HasAddr(f.Match.Addr) {
			x.add(f, IPVSIPs, ElementKey{Addr: f.Match.Addr})
		}
		if len(f.SourceRanges) > 0 {
			x.guard(f, n)
		}
	}
	if s.Health != nil {
		x.Elements = append(x.Elements, Element{
			ElementKey: ElementKey{Set: HealthCheckNodePort, Number: s.Health.Port},
			Port:       ir.ServicePort{Service: s.Name},
			Origin:     s.Health.Origin,
		})
	}
	return x
}

// addrs returns the addresses of a frontend's virtual servers.
func (n *Node) addrs(f *ir.Frontend) []netip.Addr {
	if f.Match.IsNodePort() {
		return n.nodePorts
	}
	return []netip.Addr{f.Match.Addr}
}

// virtualServer returns the virtual server of a frontend at one address. The
// kernel does not distinguish clients, but all routes of a frontend use one pool
// in this mode. The last route matches every source.
func (n *Node) virtualServer(s *ir.Service, f *ir.Frontend, addr netip.Addr) VirtualServer {
	v := VirtualServer{
		Key:       ir.Match{Addr: addr, Protocol: f.Match.Protocol, Port: f.Match.Port},
		Kind:      f.Kind,
		Scheduler: n.scheduler,
		Flags:     n.flags,
		Port:      f.Port,
		Match:     f.Match,
		Origin:    f.Origin,
	}
	if len(f.Routes) == 0 {
		return v
	}
	pool := &s.Pools[f.Routes[len(f.Routes)-1].Pool]
	if pool.Affinity != nil {
		v.Flags |= Persistent
		v.Timeout = pool.Affinity.Timeout
	}
	v.RealServers = make([]RealServer, len(pool.Backends))
	for i, b := range pool.Backends {
		v.RealServers[i] = RealServer{AddrPort: b.AddrPort, Weight: 1, Origin: b.Origin}
	}
	return v
}

// add appends an element of a frontend.
func (x *Fragment) add(f *ir.Frontend, set Set, key ElementKey) {
	key.Set = set
	x.Elements = append(x.Elements, Element{ElementKey: key, Port: f.Port, Match: f.Match, Origin: f.Origin})
}

// hairpin adds elements that masquerade connections of a local backend to itself
// through a Service.
func (x *Fragment) hairpin(p *ir.Pool) {
	for _, b := range p.Backends {
		if !b.Local {
			continue
		}
		addr := b.AddrPort.Addr()
		x.Elements = append(x.Elements, Element{
			ElementKey: ElementKey{Set: LoopBack, Addr: addr, Protocol: p.Port.Protocol, Number: b.AddrPort.Port(),
				Source: netip.PrefixFrom(addr, addr.BitLen())},
			Port:   p.Port,
			Origin: b.Origin,
		})
	}
}

// keepsClient reports whether a frontend's backends receive the client's address.
func keepsClient(f *ir.Frontend) bool {
	if n := len(f.Routes); n > 0 {
		return !f.Routes[n-1].SNAT
	}
	return f.Policy == ir.Local
}

// frontend adds an address and port to the sets of its kind.
func (x *Fragment) frontend(f *ir.Frontend) {
	key := ElementKey{Addr: f.Match.Addr, Protocol: f.Match.Protocol, Number: f.Match.Port}
	switch f.Kind {
	case ir.ClusterIP:
		x.add(f, ClusterIP, key)
	case ir.ExternalIP:
		if keepsClient(f) {
			x.add(f, ExternalIPLocal, key)
		} else {
			x.add(f, ExternalIP, key)
		}
	case ir.LoadBalancer:
		x.add(f, LoadBalancer, key)
		if keepsClient(f) {
			x.add(f, LoadBalancerLocal, key)
		}
	}
}

// nodePort adds a node port to the sets of its protocol. As in kube-proxy, SCTP
// uses a set of addresses and ports instead of a bitmap. A bitmap contains no
// addresses. If the node port has none, its number must not be added, because it
// would mark packets that other programs translate.
func (x *Fragment) nodePort(f *ir.Frontend, n *Node) {
	if len(n.nodePorts) == 0 {
		return
	}
	all, local := nodePortSets(f.Match.Protocol)
	keys := []ElementKey{{Number: f.Match.Port}}
	if all.Type() == HashIPPort {
		keys = keys[:0]
		for _, a := range n.nodePorts {
			keys = append(keys, ElementKey{Addr: a, Protocol: f.Match.Protocol, Number: f.Match.Port})
		}
	}
	for _, key := range keys {
		x.add(f, all, key)
		if keepsClient(f) {
			x.add(f, local, key)
		}
	}
}

// guard admits only the source ranges. Received packets are matched by the sets.
// Packets from the node are already translated when they reach the filter table,
// so rules match the original address as recorded by the kernel's balancer.
func (x *Fragment) guard(f *ir.Frontend, n *Node) {
	key := ElementKey{Addr: f.Match.Addr, Protocol: f.Match.Protocol, Number: f.Match.Port}
	x.add(f, LoadBalancerFW, key)
	for _, r := range f.SourceRanges {
		set := LoadBalancerSourceCIDR
		if r.Prefix.IsSingleIP() && r.Prefix.Addr() == f.Match.Addr {
			set = LoadBalancerSourceIP
		}
		for _, p := range ipsetPrefixes(r.Prefix) {
			key.Set, key.Source = set, p
			x.Elements = append(x.Elements, Element{ElementKey: key, Port: f.Port, Match: f.Match, Origin: r.Origin})
		}
	}
	x.OutFilter = append(x.OutFilter, n.outFilter(f)...)
}

// outFilter drops packets from addresses of the node that no source range admits.
// The kernel uses the VIP as source unless a process binds another address. This
// source counts as the node's primary address, as in kube-proxy, which checks
// only this source.
func (n *Node) outFilter(f *ir.Frontend) []iptables.Rule {
	sources := append([]netip.Addr{f.Match.Addr}, n.node.Addrs...)
	var rules []iptables.Rule
	rule := func(target iptables.Target, r iptables.Rule) iptables.Rule {
		r.Target, r.Rare, r.CommentLast = target, iptables.Balanced(f.Match), true
		return r.For(f)
	}
	for _, src := range sources {
		as := src
		if src == f.Match.Addr {
			as = n.node.IP
		}
		if admits(f, as) {
			rules = append(rules, rule(iptables.Return, iptables.Rule{Src: netip.PrefixFrom(src, src.BitLen())}))
		}
	}
	if len(rules) == len(sources) {
		return nil
	}
	return append(rules, rule(iptables.Drop, iptables.Rule{SrcLocal: true}))
}

func admits(f *ir.Frontend, src netip.Addr) bool {
	return slices.ContainsFunc(f.SourceRanges, func(r ir.SourceRange) bool { return r.Prefix.Contains(src) })
}

// ipsetPrefixes returns prefixes that an ipset accepts: it rejects length 0,
// which is replaced by two halves.
func ipsetPrefixes(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p}
	}
	low := netip.PrefixFrom(p.Addr(), 1)
	bytes := p.Addr().AsSlice()
	bytes[0] = 0x80
	high, _ := netip.AddrFromSlice(bytes)
	return []netip.Prefix{low, netip.PrefixFrom(high, 1)}
}

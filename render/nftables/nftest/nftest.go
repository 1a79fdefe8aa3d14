// Package nftest provides Programs of mode nftables for tests: one with all
// features of a table, and large ones.
package nftest

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Twin converts an address, prefix or address and port of the IPv4 test network
// to a family, as in the conformance cases: the last octet is kept as text.
func Twin(f ir.Family, s string) string {
	if f == ir.IPv4 {
		return s
	}
	host, port, hasPort := strings.Cut(s, ":")
	host, bits, hasBits := strings.Cut(host, "/")
	for v4, v6 := range map[string]string{
		"10.96.0.": "fd00:10:96::", "203.0.113.": "2001:db8:203::", "198.18.0.": "2001:db8:198::",
		"10.244.1.": "fd00:10:244:1::", "10.244.2.": "fd00:10:244:2::", "192.0.2.": "2001:db8:0:1::",
		"198.51.100.": "2001:db8:0:2::", "10.244.0.": "fd00:10:244::",
	} {
		if last, ok := strings.CutPrefix(host, v4); ok {
			if host = v6 + last; last == "0" {
				host = v6
			}
			break
		}
	}
	if hasPort {
		return "[" + host + "]:" + port
	}
	if hasBits {
		return host + "/" + map[string]string{"16": "48", "24": "64", "32": "128", "25": "120"}[bits]
	}
	return host
}

func Addr(f ir.Family, s string) netip.Addr         { return netip.MustParseAddr(Twin(f, s)) }
func AddrPort(f ir.Family, s string) netip.AddrPort { return netip.MustParseAddrPort(Twin(f, s)) }
func Prefix(f ir.Family, s string) netip.Prefix     { return netip.MustParsePrefix(Twin(f, s)) }

func Node(f ir.Family) ir.Node {
	return ir.Node{
		Name: "node1", Mode: ir.ModeNFTables, MasqueradeBit: 14,
		IP:           Addr(f, "192.0.2.11"),
		Addrs:        []netip.Addr{Addr(f, "192.0.2.11"), Addr(f, "10.244.1.1")},
		NodePorts:    ir.NodePortAddrs{All: true, Rejected: true, Origin: ir.Origin{Object: "config", Field: "nodePortAddresses"}},
		Detector:     ir.Detector{Mode: ir.DetectCIDR, Prefix: Prefix(f, "10.244.0.0/16"), Origin: ir.Origin{Object: "config", Field: "clusterCIDR"}},
		ServiceCIDRs: []ir.CIDR{{Prefix: Prefix(f, "10.96.0.0/16"), Origin: ir.Origin{Object: "ServiceCIDR kubernetes"}}},
	}
}

// Program returns a Program with all features of a table: each kind of frontend
// with each verdict, in all protocols, with and without affinity, and with
// backends with different ports. UDP without affinity is Stable.
func Program(f ir.Family) *ir.Program {
	p := &ir.Program{Family: f, Node: Node(f)}
	for i, proto := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		for j, affinity := range []bool{false, true} {
			s := Service(f, proto, 10+10*(2*i+j), affinity)
			if proto == ir.UDP && !affinity {
				Stable(&s, 251)
			}
			p.Services = append(p.Services, s)
		}
	}
	stable := Shared(f, ir.SCTP, 90, false)
	Stable(&stable, 251)
	p.Services = append(p.Services, Shared(f, ir.TCP, 70, false), Shared(f, ir.UDP, 80, true), stable)
	return p
}

// Shared returns a Service like that of the function Service, whose pools are shared by more
// frontends, and have 12 more backends.
func Shared(f ir.Family, proto ir.Protocol, n int, affinity bool) ir.Service {
	s := Service(f, proto, n, affinity)
	for i := range s.Pools {
		for j := range 12 {
			b := s.Pools[i].Backends[0]
			b.AddrPort = AddrPort(f, "10.244.1."+strconv.Itoa(100+j)+":8080")
			s.Pools[i].Backends = append(s.Pools[i].Backends, b)
		}
	}
	Crowd(f, &s, byte(n), 40)
	return s
}

// Stable enables Maglev for all frontends that support it.
func Stable(s *ir.Service, slots uint32) {
	m := &ir.Maglev{Slots: slots, Origin: ir.Origin{Object: s.Origin.Object, Field: "metadata.annotations.proxyc.dev/balance"}}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if f.Kind.External() && len(f.Routes) == 1 && ir.RoutesAll(f.Routes) && s.Pools[f.Routes[0].Pool].Affinity == nil {
			f.Maglev = m
		}
	}
}

// Service returns a Service with addresses from 10.96.0.n and 203.0.113.n on, and
// node ports from 30000+n on.
func Service(f ir.Family, proto ir.Protocol, n int, affinity bool) ir.Service {
	name := ir.Name{Namespace: "ns", Name: "svc" + strconv.Itoa(n)}
	why := ir.Origin{Object: "Service " + name.String()}
	s := ir.Service{Name: name, Origin: why}
	port := ir.ServicePort{Service: name, Port: "p", Protocol: proto}
	var aff *ir.Affinity
	if affinity {
		aff = &ir.Affinity{Timeout: 3 * time.Hour, Origin: why}
	}
	pool := func(policy ir.Policy, backends ...string) int {
		p := ir.Pool{Port: port, Policy: policy, Affinity: aff, Origin: why}
		for _, b := range backends {
			ap := AddrPort(f, b)
			p.Backends = append(p.Backends, ir.Backend{AddrPort: ap, Local: Prefix(f, "10.244.1.0/24").Contains(ap.Addr()),
				Origin: ir.Origin{Object: "EndpointSlice " + name.String()}})
		}
		s.Pools = append(s.Pools, p)
		return len(s.Pools) - 1
	}
	cluster := pool(ir.Cluster, "10.244.1.10:8080", "10.244.1.11:9090", "10.244.2.10:8080")
	local := pool(ir.Local, "10.244.1.10:8080", "10.244.1.11:9090")
	route := func(from ir.Scope, pool int, snat bool) ir.Route {
		return ir.Route{From: from, Pool: pool, SNAT: snat, Origin: why}
	}
	front := func(kind ir.Kind, at string, offset uint16, otherwise ir.Verdict, routes ...ir.Route) *ir.Frontend {
		m := ir.Match{Protocol: proto, Port: 80 + offset}
		if at == "" {
			m.Port = 30000 + uint16(n) + offset
		} else {
			m.Addr = Addr(f, at+strconv.Itoa(n))
		}
		s.Frontends = append(s.Frontends, ir.Frontend{Kind: kind, Match: m, Port: port, Routes: routes, Fallback: otherwise,
			FallbackOrigin: why, Origin: why})
		return &s.Frontends[len(s.Frontends)-1]
	}
	inside := []ir.Route{route(ir.Pods, cluster, false), route(ir.ThisNode, cluster, true)}
	front(ir.ClusterIP, "10.96.0.", 0, ir.Reject, route(ir.Pods, cluster, false), route(ir.Any, cluster, true))
	front(ir.ClusterIP, "10.96.0.", 1, ir.Reject, route(ir.Any, local, false))
	front(ir.ClusterIP, "10.96.0.", 2, ir.Drop)
	front(ir.ExternalIP, "198.18.0.", 0, ir.Reject, route(ir.Any, cluster, true))
	front(ir.ExternalIP, "198.18.0.", 1, ir.Reject)
	lb := front(ir.LoadBalancer, "203.0.113.", 0, ir.Drop, append(inside, route(ir.Any, local, false))...)
	admit := func(ranges ...string) {
		for _, r := range ranges {
			lb.SourceRanges = append(lb.SourceRanges, ir.SourceRange{Prefix: Prefix(f, r), Origin: why})
		}
	}
	admit("192.0.2.0/24", "192.0.2.12/32", "192.0.2.0/24", "10.244.0.0/16", "198.51.100.0/25")
	lb = front(ir.LoadBalancer, "203.0.113.", 1, ir.Drop, inside...)
	lb.SourceRanges = []ir.SourceRange{{Prefix: netip.PrefixFrom(Addr(f, "192.0.2.0"), 0).Masked(), Origin: why}}
	lb = front(ir.LoadBalancer, "203.0.113.", 2, ir.Reject)
	admit("203.0.113."+strconv.Itoa(n)+"/32", "192.0.2.12/32", "10.244.0.0/16")
	for i := range 10 { // too many for rules, and adjacent
		admit("198.51.100." + strconv.Itoa(1+i) + "/32")
	}
	front(ir.NodePort, "", 0, ir.Reject, route(ir.Any, cluster, true))
	front(ir.NodePort, "", 1, ir.Drop, append(inside, route(ir.Any, local, false))...)
	front(ir.NodePort, "", 2, ir.Drop, inside...)
	front(ir.NodePort, "", 3, ir.Reject)
	return s
}

// Crowd adds n frontends like each of the first address of a kind, so that they share its pools.
// Their addresses contain net.
func Crowd(f ir.Family, s *ir.Service, net byte, n int) {
	for kind := range ir.NodePort {
		first := slices.IndexFunc(s.Frontends, func(f ir.Frontend) bool { return f.Kind == kind && len(f.Routes) > 0 })
		for i := range n {
			if first < 0 {
				break
			}
			more := s.Frontends[first]
			more.Match.Addr = netip.AddrFrom4([4]byte{198, 19 + byte(kind), net, byte(i)})
			if f == ir.IPv6 {
				more.Match.Addr = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 1, 0x98, byte(kind), net, 15: byte(i)})
			}
			s.Frontends = append(s.Frontends, more)
		}
	}
	slices.SortFunc(s.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) })
}

// Variants returns settings of a node that change the fixed part.
func Variants(f ir.Family) map[string]func(*ir.Node) {
	return map[string]func(*ir.Node){
		"cidr":      func(*ir.Node) {},
		"none":      func(n *ir.Node) { n.Detector = ir.Detector{} },
		"interface": func(n *ir.Node) { n.Detector = ir.Detector{Mode: ir.DetectInterface, Interface: "cni0"} },
		"prefix":    func(n *ir.Node) { n.Detector = ir.Detector{Mode: ir.DetectPrefix, Interface: "veth"} },
		"node addresses in ranges": func(n *ir.Node) {
			n.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{
				{Prefix: Prefix(f, "192.0.2.0/24"), Assigned: true}, {Prefix: f.Loopback(), Assigned: true}}}
		},
		"primary node address": func(n *ir.Node) {
			n.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: Prefix(f, "192.0.2.11/32")}}}
		},
		"other mark":       func(n *ir.Node) { n.MasqueradeBit = 31 },
		"no service range": func(n *ir.Node) { n.ServiceCIDRs = nil },
	}
}

// Large returns a Program of n Services, each with one ClusterIP and ten
// backends, one of them on the node. Every tenth has a node port, every twentieth
// a load balancer address with externalTrafficPolicy Local.
func Large(n int) *ir.Program {
	p := &ir.Program{Family: ir.IPv4, Node: Node(ir.IPv4)}
	p.Services = make([]ir.Service, n)
	for i := range p.Services {
		p.Services[i] = LargeService(i)
	}
	return p
}

func LargeService(i int) ir.Service {
	name := ir.Name{Namespace: "ns" + strconv.Itoa(i%100), Name: "svc" + strconv.Itoa(i)}
	port := ir.ServicePort{Service: name, Port: "http", Protocol: ir.TCP}
	at := func(a, b byte) netip.Addr { return netip.AddrFrom4([4]byte{10, a, byte(i >> 8), byte(i)&0xf0 | b}) }
	s := ir.Service{Name: name, Pools: []ir.Pool{{Port: port}}}
	for j := range byte(10) {
		s.Pools[0].Backends = append(s.Pools[0].Backends, ir.Backend{
			AddrPort: netip.AddrPortFrom(at(128+byte(i&15), j), 8080), Local: j == 0})
	}
	pods, rest := ir.Route{From: ir.Pods}, ir.Route{From: ir.Any, SNAT: true}
	add := func(k ir.Kind, m ir.Match, routes ...ir.Route) {
		s.Frontends = append(s.Frontends, ir.Frontend{Kind: k, Match: m, Port: port, Routes: routes})
	}
	vip := netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
	add(ir.ClusterIP, ir.Match{Addr: vip, Protocol: ir.TCP, Port: 80}, pods, rest)
	if i%10 == 0 {
		add(ir.NodePort, ir.Match{Protocol: ir.TCP, Port: uint16(1024 + i/10)}, rest)
	}
	if i%20 == 0 {
		s.Pools = append(s.Pools, ir.Pool{Port: port, Policy: ir.Local, Backends: s.Pools[0].Backends[:1]})
		add(ir.LoadBalancer, ir.Match{Addr: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), Protocol: ir.TCP, Port: 80},
			pods, ir.Route{From: ir.ThisNode, SNAT: true}, ir.Route{From: ir.Any, Pool: 1})
	}
	return s
}

// Sticky returns a Program of one Service with affinity. Its ClusterIP
// 10.96.0.10, 203.0.113.10 with policy Local and node port 30080 share backends
// on both nodes, with two ports, and on the node under test itself.
func Sticky(f ir.Family, proto ir.Protocol) *ir.Program {
	port := ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "sticky"}, Protocol: proto}
	affinity := &ir.Affinity{Timeout: time.Hour}
	pool := func(policy ir.Policy, backends ...string) ir.Pool {
		p := ir.Pool{Port: port, Policy: policy, Affinity: affinity}
		for _, b := range backends {
			p.Backends = append(p.Backends, ir.Backend{AddrPort: AddrPort(f, b), Local: !strings.HasPrefix(b, "10.244.2.")})
		}
		return p
	}
	front := func(kind ir.Kind, m ir.Match, routes ...ir.Route) ir.Frontend {
		m.Protocol = proto
		return ir.Frontend{Kind: kind, Match: m, Port: port, Routes: routes}
	}
	s := ir.Service{
		Name: port.Service,
		Pools: []ir.Pool{
			pool(ir.Cluster, "10.244.1.10:8080", "10.244.1.11:9090", "10.244.2.10:8080", "192.0.2.11:8081"),
			pool(ir.Local, "10.244.1.10:8080", "10.244.1.11:9090", "192.0.2.11:8081"),
		},
		Frontends: []ir.Frontend{
			front(ir.ClusterIP, ir.Match{Addr: Addr(f, "10.96.0.10"), Port: 80}, ir.Route{From: ir.Pods}, ir.Route{SNAT: true}),
			front(ir.LoadBalancer, ir.Match{Addr: Addr(f, "203.0.113.10"), Port: 80},
				ir.Route{From: ir.Pods}, ir.Route{From: ir.ThisNode, SNAT: true}, ir.Route{Pool: 1}),
			front(ir.NodePort, ir.Match{Port: 30080}, ir.Route{SNAT: true}),
		},
	}
	return &ir.Program{Family: f, Node: Node(f), Services: []ir.Service{s}}
}

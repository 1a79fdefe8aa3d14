// Package irtest provides a small Program for tests, with one Service for each
// result of a packet.
package irtest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// Program returns an IPv4 Program of node1 in a mode, with the routes that the
// compiler creates for iptables and nftables. Pods are 10.244.0.0/16, node1 is
// 192.0.2.11.
//
//	default/web      10.96.0.10:80, node port 30080, 203.0.113.10:80, 198.18.0.10:80; policy Cluster; 10.244.1.10 here, 10.244.2.10 elsewhere
//	default/local    10.96.0.11:80, node port 30081, 203.0.113.11:80; externalTrafficPolicy Local; the same backends
//	default/remote   10.96.0.12:80 and node port 30082, both policies Local; 10.244.2.10 only
//	default/none     10.96.0.13:80, node port 30083, 203.0.113.13:80 for 198.51.100.0/24; no endpoint
//	default/ranges   203.0.113.14:80 for 198.51.100.0/24; 10.244.1.10
//	default/sticky   10.96.0.15:53/udp with affinity
func Program(mode ir.Mode) *ir.Program {
	p := &ir.Program{
		Family: ir.IPv4,
		Node: ir.Node{
			Name: "node1", Zone: "zone-a", Mode: mode,
			IP:        netip.MustParseAddr("192.0.2.11"),
			Addrs:     []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("192.0.2.11")},
			NodePorts: ir.NodePortAddrs{All: true, Loopback: mode == ir.ModeIPTables, Origin: origin("config", "nodePortAddresses")},
			Detector: ir.Detector{Mode: ir.DetectCIDR, Prefix: netip.MustParsePrefix("10.244.0.0/16"),
				Origin: origin("config", "clusterCIDR")},
			MasqueradeBit: 14,
			ServiceCIDRs: []ir.CIDR{{Prefix: netip.MustParsePrefix("10.96.0.0/16"),
				Origin: origin("ServiceCIDR kubernetes", "spec.cidrs[0]")}},
		},
	}
	all := []string{"10.244.1.10:8080", "10.244.2.10:8080"}
	here, elsewhere := all[:1], all[1:]

	web := newService("web", ir.TCP)
	cluster := web.pool(ir.Cluster, all)
	web.clusterIP("10.96.0.10", 80, ir.Cluster, cluster)
	for _, k := range web.external("198.18.0.10", "203.0.113.10", 80, 30080) {
		web.frontend(k, ir.Cluster, ir.Reject, ir.Route{From: ir.Any, Pool: cluster, SNAT: true})
	}

	local := newService("local", ir.TCP)
	cluster, localPool := local.pool(ir.Cluster, all), local.pool(ir.Local, here)
	local.clusterIP("10.96.0.11", 80, ir.Cluster, cluster)
	for _, k := range local.external("", "203.0.113.11", 80, 30081) {
		local.frontend(k, ir.Local, ir.Drop, ir.Route{From: ir.Pods, Pool: cluster},
			ir.Route{From: ir.ThisNode, Pool: cluster, SNAT: true}, ir.Route{From: ir.Any, Pool: localPool})
	}

	remote := newService("remote", ir.TCP)
	cluster = remote.pool(ir.Cluster, elsewhere)
	remote.frontend(key{ir.ClusterIP, "10.96.0.12", 80}, ir.Local, ir.Drop)
	remote.frontend(key{ir.NodePort, "", 30082}, ir.Local, ir.Drop,
		ir.Route{From: ir.Pods, Pool: cluster}, ir.Route{From: ir.ThisNode, Pool: cluster, SNAT: true})

	none := newService("none", ir.TCP)
	none.frontend(key{ir.ClusterIP, "10.96.0.13", 80}, ir.Cluster, ir.Reject)
	for _, k := range none.external("", "203.0.113.13", 80, 30083) {
		f := none.frontend(k, ir.Cluster, ir.Reject)
		if k.kind == ir.LoadBalancer {
			f.SourceRanges = none.ranges()
		}
	}

	ranges := newService("ranges", ir.TCP)
	cluster = ranges.pool(ir.Cluster, here)
	f := ranges.frontend(key{ir.LoadBalancer, "203.0.113.14", 80}, ir.Cluster, ir.Reject,
		ir.Route{From: ir.Any, Pool: cluster, SNAT: true})
	f.SourceRanges = ranges.ranges()

	sticky := newService("sticky", ir.UDP)
	cluster = sticky.pool(ir.Cluster, all)
	sticky.s.Pools[cluster].Affinity = &ir.Affinity{Timeout: 3 * time.Hour,
		Origin: origin(sticky.s.Origin.Object, "spec.sessionAffinity")}
	sticky.clusterIP("10.96.0.15", 53, ir.Cluster, cluster)
	sticky.s.Draining = []ir.Draining{{Port: sticky.port, Origin: origin(sticky.s.Origin.Object, "spec.ports[0]"), Backends: []ir.Backend{{
		AddrPort: netip.MustParseAddrPort("10.244.1.12:8080"), Local: true,
		Origin: origin("EndpointSlice default/sticky-1", "endpoints[2]")}}}}

	for _, s := range []*service{local, none, ranges, remote, sticky, web} {
		p.Services = append(p.Services, s.s)
	}
	return p
}

func origin(object, field string) ir.Origin { return ir.Origin{Object: object, Field: field} }

type service struct {
	s    ir.Service
	port ir.ServicePort
}

type key struct {
	kind ir.Kind
	addr string // empty for a node port
	port uint16
}

func newService(name string, proto ir.Protocol) *service {
	n := ir.Name{Namespace: "default", Name: name}
	return &service{
		s:    ir.Service{Name: n, Origin: ir.Origin{Object: "Service " + n.String()}},
		port: ir.ServicePort{Service: n, Protocol: proto},
	}
}

func (s *service) pool(policy ir.Policy, backends []string) int {
	p := ir.Pool{Port: s.port, Policy: policy, Origin: s.s.Origin}
	for i, b := range backends {
		ap := netip.MustParseAddrPort(b)
		p.Backends = append(p.Backends, ir.Backend{
			AddrPort: ap,
			Local:    netip.MustParsePrefix("10.244.1.0/24").Contains(ap.Addr()),
			Origin: ir.Origin{Object: "EndpointSlice " + s.s.Name.String() + "-1",
				Field: [...]string{"endpoints[0]", "endpoints[1]"}[i], Reason: "ready"},
		})
	}
	s.s.Pools = append(s.s.Pools, p)
	return len(s.s.Pools) - 1
}

func (s *service) external(externalIP, vip string, port, nodePort uint16) []key {
	var keys []key
	if externalIP != "" {
		keys = append(keys, key{ir.ExternalIP, externalIP, port})
	}
	return append(keys, key{ir.LoadBalancer, vip, port}, key{ir.NodePort, "", nodePort})
}

func (s *service) clusterIP(addr string, port uint16, policy ir.Policy, pool int) {
	s.frontend(key{ir.ClusterIP, addr, port}, policy, ir.Reject,
		ir.Route{From: ir.Pods, Pool: pool}, ir.Route{From: ir.Any, Pool: pool, SNAT: true})
}

func (s *service) frontend(k key, policy ir.Policy, otherwise ir.Verdict, routes ...ir.Route) *ir.Frontend {
	m := ir.Match{Protocol: s.port.Protocol, Port: k.port}
	if k.addr != "" {
		m.Addr = netip.MustParseAddr(k.addr)
	}
	for i := range routes {
		routes[i].Origin = s.s.Origin
	}
	f := ir.Frontend{Kind: k.kind, Match: m, Port: s.port, Policy: policy, Routes: routes, Fallback: otherwise, Origin: s.s.Origin}
	if !ir.RoutesAll(routes) {
		f.FallbackOrigin = ir.Origin{Object: s.s.Origin.Object, Reason: "no ready endpoint"}
	}
	s.s.Frontends = append(s.s.Frontends, f)
	return &s.s.Frontends[len(s.s.Frontends)-1]
}

func (s *service) ranges() []ir.SourceRange {
	return []ir.SourceRange{{Prefix: netip.MustParsePrefix("198.51.100.0/24"),
		Origin: origin(s.s.Origin.Object, "spec.loadBalancerSourceRanges[0]")}}
}

// Ports returns a random version of Service ns/ports, with up to six ports. Equal ports of two
// versions are frequent. intn returns a random number below n.
func Ports(intn func(n int) int) *ir.Service {
	s := &ir.Service{Name: ir.Name{Namespace: "ns", Name: "ports"}, Origin: origin("Service ns/ports", "")}
	for i := range 6 { // the order of ports is not that of frontends
		port := ir.ServicePort{Service: s.Name, Port: string(rune('a' + i)), Protocol: ir.TCP}
		if intn(5) == 0 {
			continue
		}
		f := ir.Frontend{Match: ir.Match{Addr: netip.MustParseAddr("10.96.0.20"), Protocol: ir.TCP, Port: uint16(90 - i)}, Port: port,
			Fallback: ir.Reject, Origin: origin("Service ns/ports", "spec.ports")}
		np := f
		np.Kind, np.Match = ir.NodePort, ir.Match{Protocol: ir.TCP, Port: uint16(30100 + i)}
		crowd := intn(8) == 0 // enough frontends and backends to share a pool
		if backends := intn(3); backends > 0 {
			if crowd {
				backends = 13
			}
			for policy := range ir.Policy(1 + i%2) {
				pool := ir.Pool{Port: port, Policy: policy, Origin: origin("Service ns/ports", "")}
				if i%3 == 0 {
					pool.Affinity = &ir.Affinity{Timeout: time.Hour, Origin: pool.Origin}
				}
				for j := range backends {
					pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(1 + j), byte(10 + intn(2))}), 8080),
						Local: j == 0, Origin: pool.Origin})
				}
				s.Pools = append(s.Pools, pool)
			}
			last := len(s.Pools) - 1
			f.Routes = []ir.Route{{From: ir.Pods, Pool: last - i%2, Origin: s.Origin}, {From: ir.Any, Pool: last - i%2, SNAT: true, Origin: s.Origin}}
			np.Routes = []ir.Route{{From: ir.Any, Pool: last, SNAT: true, Origin: s.Origin}}
		}
		s.Frontends = append(s.Frontends, f, np)
		for n := byte(0); crowd && n < 40; n++ {
			external := np
			external.Kind, external.Match = ir.ExternalIP, ir.Match{Addr: netip.AddrFrom4([4]byte{198, 18, 0, n}), Protocol: ir.TCP, Port: uint16(90 - i)}
			s.Frontends = append(s.Frontends, external)
		}
		if intn(4) == 0 {
			s.Draining = append(s.Draining, ir.Draining{Port: port, Backends: []ir.Backend{{AddrPort: netip.MustParseAddrPort("10.244.1.99:8080"), Origin: s.Origin}}, Origin: s.Origin})
		}
	}
	slices.SortFunc(s.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) })
	return s
}

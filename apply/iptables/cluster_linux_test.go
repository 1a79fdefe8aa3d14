package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// programs returns Programs of both families with n Services. Each has a ClusterIP and two
// backends; some have a node port, affinity, source ranges, or no backend.
func programs(n int) ir.Programs {
	return ir.NewPrograms(
		program(ir.IPv4, n, "192.0.2.11", "10.96.0.0", "10.244.0.0", "203.0.113.0"),
		program(ir.IPv6, n, "2001:db8::11", "fd00:96::", "fd00:244::", "2001:db8:203::"),
	)
}

func program(f ir.Family, n int, node, cluster, pod, vip string) *ir.Program {
	bits := f.Bits() / 2
	p := &ir.Program{Family: f, Node: ir.Node{
		Name: "node1", Mode: ir.ModeIPTables, MasqueradeBit: 14,
		IP: netip.MustParseAddr(node), Addrs: []netip.Addr{netip.MustParseAddr(node)},
		NodePorts: ir.NodePortAddrs{All: true, Loopback: f == ir.IPv4},
		Detector:  ir.Detector{Mode: ir.DetectCIDR, Prefix: netip.PrefixFrom(netip.MustParseAddr(pod), bits).Masked()},
	}}
	clusterIP, podIP, vipIP := netip.MustParseAddr(cluster), netip.MustParseAddr(pod), netip.MustParseAddr(vip)
	for i := range n {
		clusterIP, vipIP = clusterIP.Next(), vipIP.Next()
		s := ir.Service{Name: ir.Name{Namespace: "default", Name: fmt.Sprintf("s%d", i)}}
		port := ir.ServicePort{Service: s.Name, Port: "p", Protocol: ir.TCP}
		origin := ir.Origin{Object: "Service " + s.Name.String()}
		f := ir.Frontend{Match: ir.Match{Addr: clusterIP, Protocol: ir.TCP, Port: 80}, Port: port, Origin: origin, FallbackOrigin: origin}
		outside := f
		if i%7 != 3 {
			pool := ir.Pool{Port: port}
			for range 2 {
				podIP = podIP.Next()
				pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(podIP, 8080), Origin: origin})
			}
			if i%5 == 2 {
				pool.Affinity = &ir.Affinity{Timeout: time.Hour, Origin: origin}
			}
			s.Pools = []ir.Pool{pool}
			f.Routes = []ir.Route{{From: ir.Pods, Origin: origin}, {From: ir.Any, SNAT: true, Origin: origin}}
			outside.Routes = f.Routes[1:]
		}
		s.Frontends = []ir.Frontend{f}
		if i%3 == 1 {
			outside.Kind, outside.Match.Addr = ir.LoadBalancer, vipIP
			if i%2 == 1 {
				outside.SourceRanges = []ir.SourceRange{{Prefix: p.Node.Detector.Prefix, Origin: origin}}
			}
			s.Frontends = append(s.Frontends, outside)
			outside.Kind, outside.Match, outside.SourceRanges = ir.NodePort, ir.Match{Protocol: ir.TCP, Port: uint16(30000 + i)}, nil
			s.Frontends = append(s.Frontends, outside)
		}
		p.Services = append(p.Services, s)
	}
	return p
}

// thinned removes some Services and backends, or all backends of a Service. Without random it
// removes everything.
func thinned(ps ir.Programs, random *rand.Rand) ir.Programs {
	var out ir.Programs
	for f, p := range ir.Present(ps) {
		q := *p
		q.Services = nil
		for _, s := range p.Services {
			if random == nil || random.IntN(3) == 0 {
				continue
			}
			switch {
			case len(s.Pools) > 0 && random.IntN(3) == 0:
				s.Pools = slices.Clone(s.Pools)
				s.Pools[0].Backends = s.Pools[0].Backends[:1]
			case random.IntN(4) == 0:
				s.Pools, s.Frontends = nil, slices.Clone(s.Frontends)
				for i := range s.Frontends {
					s.Frontends[i].Routes = nil
				}
			}
			q.Services = append(q.Services, s)
		}
		*out.At(f) = &q
	}
	return out
}

func opsOf(p apply.Plan) []apply.Operation {
	return slices.Collect(func(yield func(apply.Operation) bool) { p.Operations(yield) })
}

func lower(ps ir.Programs) rules.Rulesets { return rules.LowerAll(ps) }

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

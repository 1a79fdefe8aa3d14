package nftables

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// bigProgram has n Services of one ClusterIP and ten backends, one of them
// here; every tenth has a node port, every twentieth a load balancer address
// with externalTrafficPolicy Local.
func bigProgram(n int) *ir.Program {
	p := &ir.Program{Family: ir.IPv4, Node: testNode(ir.IPv4)}
	p.Services = make([]ir.Service, n)
	for i := range p.Services {
		p.Services[i] = bigService(i)
	}
	return p
}

func bigService(i int) ir.Service {
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
			pods, ir.Route{From: ir.Host, SNAT: true}, ir.Route{From: ir.Any, Pool: 1})
	}
	return s
}

func BenchmarkLowerWrite(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		p := bigProgram(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Write(io.Discard, Lower(p)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/service")
		})
	}
}

func BenchmarkLowerService(b *testing.B) {
	p := bigProgram(1)
	b.ReportAllocs()
	for b.Loop() {
		LowerService(&p.Node, p.Family, &p.Services[0])
	}
}

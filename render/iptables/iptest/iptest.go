// Package iptest provides Programs for tests of mode iptables.
package iptest

import (
	"fmt"
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// Twin converts an IPv4 Program to IPv6, with the same mapping as the conformance
// cases.
func Twin(p *ir.Program) *ir.Program {
	starts := []struct{ v4, v6 string }{
		{"10.244.1.", "fd00:10:244:1::"}, {"10.244.2.", "fd00:10:244:2::"}, {"10.96.0.", "fd00:10:96::"},
		{"203.0.113.", "2001:db8:203::"}, {"198.18.0.", "2001:db8:198::"}, {"192.0.2.", "2001:db8:0:1::"},
	}
	addr := func(a netip.Addr) netip.Addr {
		if !a.IsValid() {
			return a
		}
		for _, s := range starts {
			if start := s.v4; len(a.String()) > len(start) && a.String()[:len(start)] == start {
				return netip.MustParseAddr(s.v6 + a.String()[len(start):])
			}
		}
		panic(a)
	}
	p.Family = ir.IPv6
	p.Node.IP = addr(p.Node.IP)
	for i, a := range p.Node.Addrs {
		p.Node.Addrs[i] = addr(a)
	}
	p.Node.NodePorts.Loopback = false
	p.Node.Detector.Prefix = netip.MustParsePrefix("fd00:10:244::/48")
	p.Node.ServiceCIDRs[0].Prefix = netip.MustParsePrefix("fd00:10:96::/112")
	for i := range p.Services {
		s := &p.Services[i]
		for j := range s.Frontends {
			f := &s.Frontends[j]
			f.Match.Addr = addr(f.Match.Addr)
			for k := range f.SourceRanges {
				f.SourceRanges[k].Prefix = netip.MustParsePrefix("2001:db8:0:2::/64")
			}
		}
		for j := range s.Pools {
			for k := range s.Pools[j].Backends {
				b := &s.Pools[j].Backends[k]
				b.AddrPort = netip.AddrPortFrom(addr(b.AddrPort.Addr()), b.AddrPort.Port())
			}
		}
	}
	return p
}

// Many returns a Program of n Services, each with a ClusterIP and backends. Every
// tenth also has a node port and an external address, and every fiftieth has no
// backends.
func Many(family ir.Family, n, backends int) *ir.Program {
	p := &ir.Program{Family: family, Node: ir.Node{
		Name: "node1", Mode: ir.ModeIPTables, NodePorts: ir.NodePortAddrs{All: true}, MasqueradeBit: 14,
		Detector: ir.Detector{Mode: ir.DetectCIDR, Prefix: netip.MustParsePrefix("10.128.0.0/9")},
	}}
	cluster, pods, external := netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.128.0.0"), netip.MustParseAddr("198.18.0.0")
	if family == ir.IPv6 {
		p.Node.Detector.Prefix = netip.MustParsePrefix("fd00:10::/32")
		cluster, pods, external = netip.MustParseAddr("fd00:96::"), netip.MustParseAddr("fd00:10::"), netip.MustParseAddr("fd00:198::")
	}
	for i := range n {
		name := ir.Name{Namespace: "default", Name: fmt.Sprintf("service-%d", i)}
		port := ir.ServicePort{Service: name, Port: "http", Protocol: ir.TCP}
		cluster = cluster.Next()
		s := ir.Service{Name: name}
		routes := []ir.Route{{From: ir.Pods}, {From: ir.Any, SNAT: true}}
		outside := []ir.Route{{From: ir.Any, SNAT: true}}
		if i%50 == 0 {
			routes, outside = nil, nil
		} else {
			pool := ir.Pool{Port: port}
			for range backends {
				pods = pods.Next()
				pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(pods, 8080)})
			}
			s.Pools = []ir.Pool{pool}
		}
		s.Frontends = []ir.Frontend{{Match: ir.Match{Addr: cluster, Protocol: ir.TCP, Port: 80}, Port: port, Routes: routes}}
		if i%10 == 0 {
			external = external.Next()
			s.Frontends = append(s.Frontends,
				ir.Frontend{Kind: ir.ExternalIP, Match: ir.Match{Addr: external, Protocol: ir.TCP, Port: 80}, Port: port, Routes: outside},
				ir.Frontend{Kind: ir.NodePort, Match: ir.Match{Protocol: ir.TCP, Port: uint16(30000 + i/10)}, Port: port, Routes: outside})
		}
		p.Services = append(p.Services, s)
	}
	return p
}

// Both returns a Program with one Service of each kind, and its IPv6 twin.
func Both() ir.Programs {
	return ir.NewPrograms(irtest.Program(ir.ModeIPTables), Twin(irtest.Program(ir.ModeIPTables)))
}

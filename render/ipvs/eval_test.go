package ipvs_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/ipvs/eval"
)

// Every packet of a small cluster has the same outcome under the rules as under
// the IR.
func TestEval(t *testing.T) {
	changes := map[string]func(*ir.Program){
		"detector": func(*ir.Program) {},
		"no":       func(p *ir.Program) { ipvs.NoDetector(p) },
		"all": func(p *ir.Program) {
			p.Node.MasqueradeAll = true
			ipvs.RouteClusterIPs(p, ir.Route{From: ir.Any, SNAT: true})
		},
		"interface":  func(p *ir.Program) { p.Node.Detector = ir.Detector{Mode: ir.DetectInterface, Interface: "cni0"} },
		"prefix":     func(p *ir.Program) { p.Node.Detector = ir.Detector{Mode: ir.DetectPrefix, Interface: "cn"} },
		"node ports": func(p *ir.Program) { ipvs.OnePrefix(p) },
		"clash":      func(p *ir.Program) { p.Services[0].Frontends[2].Match.Port = 80 }, // a node port 80 in addition to the ClusterIPs' port 80
		"node's range": func(p *ir.Program) {
			ipvs.Admit(p, netip.PrefixFrom(p.Node.IP, p.Node.IP.BitLen()))
		},
	}
	for _, family := range []ir.Family{ir.IPv4, ir.IPv6} {
		for name, change := range changes {
			p := ipvs.Program(family)
			change(p)
			rules := eval.NewEvaluator(ipvs.Lower(p), sim.NewOwn(family.Loopback(), p.Node.Addrs))
			for _, pkt := range packets(p) {
				if got, want := rules.Outcome(pkt, nil), sim.Trace(p, pkt); !got.Equal(want) {
					t.Errorf("%s, %s: %s -> %s:%d/%s by %q\n got %s\nwant %s",
						family, name, pkt.Src, pkt.Dst, pkt.Port, pkt.Protocol, pkt.In, got, want)
				}
			}
		}
	}
}

// packets returns all pairs of a source and a destination that some rule names,
// and some that no rule names.
func packets(p *ir.Program) []sim.Packet {
	type source struct {
		addr netip.Addr
		in   string
	}
	var sources []source
	for _, s := range []struct{ addr, in string }{
		{"10.244.1.10", "cni0"}, {"10.244.1.20", "cni0"}, {"10.244.2.10", "eth0"}, {"192.0.2.11", ""},
		{"10.244.1.1", ""}, {"198.51.100.200", "eth0"}, {"198.18.7.7", "eth0"}, {"203.0.113.14", ""},
	} {
		a := netip.MustParseAddr(s.addr)
		if p.Family == ir.IPv6 {
			a = ipvs.Six(a)
		}
		sources = append(sources, source{a, s.in})
	}
	var addrs []netip.Addr
	ports := []uint16{81, 30080}
	for _, s := range p.Services {
		for _, f := range s.Frontends {
			if f.Match.IsNodePort() {
				addrs = append(addrs, p.Node.Addrs...)
			} else {
				addrs = append(addrs, f.Match.Addr)
			}
			ports = append(ports, f.Match.Port)
		}
	}
	addrs = append(addrs, sources[1].addr, sources[6].addr)
	slices.SortFunc(addrs, netip.Addr.Compare)
	slices.Sort(ports)
	addrs, ports = slices.Compact(addrs), slices.Compact(ports)
	var all []sim.Packet
	for _, s := range sources {
		for _, dst := range addrs {
			for _, port := range ports {
				for _, proto := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
					all = append(all, sim.Packet{Src: s.addr, Dst: dst, Protocol: proto, Port: port, In: s.in})
				}
			}
		}
	}
	return all
}

// kube-proxy's results with real packets, as recorded.
func TestEvalFacts(t *testing.T) {
	const pod, node, outside, denied = "10.244.1.20@cni0", "192.0.2.11", "198.51.100.200@eth0", "198.18.7.7@eth0"
	tests := []struct{ rule, from, to, want string }{
		{"hairpin", "10.244.1.10@cni0", "10.96.0.10:80", "10.244.1.10:8080+snat 10.244.2.10:8080"},
		{"policy Local", outside, "203.0.113.11:80", "10.244.1.10:8080"},
		{"policy Local from the node", node, "203.0.113.11:80", "10.244.1.10:8080"},
		{"IPV-4 policy Local without local endpoints", outside, "192.0.2.11:30082", "10.244.2.10:8080"},
		{"IPV-5 no endpoints", outside, "10.96.0.13:80", "rejected"},
		{"VIP's other port", outside, "203.0.113.10:81", "rejected"},
		{"outside the ranges", denied, "203.0.113.14:80", "dropped"},
		{"the node, outside the ranges", node, "203.0.113.14:80", "dropped"},
		{"loopback", "127.0.0.1", "127.0.0.1:30080", "not ours"},
		{"affinity", pod, "10.96.0.15:53/udp", "10.244.1.10:8080 10.244.2.10:8080 (affinity)"},
	}
	p := ipvs.Program(ir.IPv4)
	rules := eval.NewEvaluator(ipvs.Lower(p), sim.NewOwn(ir.IPv4.Loopback(), p.Node.Addrs))
	for _, tt := range tests {
		pkt, err := sim.ParsePacket(tt.from, tt.to)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(rules.Outcome(pkt, nil)); got != tt.want {
			t.Errorf("%s: %s -> %s\n got %s\nwant %s", tt.rule, tt.from, tt.to, got, tt.want)
		}
	}
}

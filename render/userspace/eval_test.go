package userspace_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/userspace"
	"github.com/proxyc/proxyc/render/userspace/eval"
)

func TestEval(t *testing.T) {
	for _, change := range []func(*ir.Program){
		func(*ir.Program) {},
		func(p *ir.Program) { p.Node.Userspace = nil },
		func(p *ir.Program) { p.Node.Userspace.BindAddress = netip.MustParseAddr("192.0.2.11") },
		func(p *ir.Program) { p.Node.IP = netip.Addr{} },
		func(p *ir.Program) {
			p.Node.NodePorts = ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Assigned: true}}}
		},
		func(p *ir.Program) { p.Node.NodePorts.Loopback = true },
		func(p *ir.Program) {
			p.Node.NodePorts = ir.NodePortAddrs{Loopback: true, Prefixes: []ir.NodePortPrefix{{Prefix: ir.IPv4.Loopback(), Assigned: true}}}
		},
	} {
		p := userspace.Program()
		change(p)
		rules := eval.NewEvaluator(userspace.Lower(p), sim.OwnOf(p.Node.HasAddr))
		for _, pkt := range packets(p) {
			if pkt.Dst.IsLoopback() && !pkt.FromNode() { // not received from outside
				continue
			}
			if got, want := rules.Outcome(pkt, nil), sim.Trace(p, pkt); !got.Equal(want) {
				t.Errorf("%s by %q -> %s:%d/%s\n got %s\nwant %s", pkt.Src, pkt.In, pkt.Dst, pkt.Port, pkt.Protocol, got, want)
			}
		}
	}
}

// packets returns all pairs of a source and a destination that some rule names,
// and some that no rule names.
func packets(p *ir.Program) []sim.Packet {
	addrs := []string{"127.0.0.1", "10.244.1.10", "10.244.1.1", "192.0.2.11", "192.0.2.12", "10.96.7.7"}
	ports := []uint16{81}
	for _, s := range p.Services {
		for _, f := range s.Frontends {
			ports = append(ports, f.Match.Port)
			if !f.Match.IsNodePort() {
				addrs = append(addrs, f.Match.Addr.String())
			}
		}
	}
	var all []sim.Packet
	for _, src := range []string{"10.244.1.10@cni0", "192.0.2.11", "198.51.100.200@eth0"} {
		for _, addr := range addrs {
			for _, port := range ports {
				for _, proto := range []string{"tcp", "udp", "sctp"} {
					pkt, err := sim.ParsePacket(src, fmt.Sprintf("%s:%d/%s", addr, port, proto))
					if err != nil {
						panic(err)
					}
					all = append(all, pkt)
				}
			}
		}
	}
	return all
}

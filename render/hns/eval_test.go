package hns_test

import (
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/hns"
	"github.com/proxyc/proxyc/render/hns/eval"
)

func TestEval(t *testing.T) {
	for _, change := range []func(*ir.Program){func(*ir.Program) {}, hns.OnOverlay, func(p *ir.Program) {
		p.Node.HNS.ForwardHealthCheckVIP, p.Node.HNS.RootEndpoint = true, "cbr0"
	}} {
		p := hns.Program()
		change(p)
		rules := eval.NewEvaluator(hns.Lower(p), sim.OwnOf(p.Node.HasAddr))
		ports := []uint16{81, 10256}
		addrs := []string{"127.0.0.1", "192.0.2.11", "10.244.1.1", "192.0.2.12", "10.96.7.7"}
		for _, s := range p.Services {
			for _, f := range s.Frontends {
				ports = append(ports, f.Match.Port)
				if !f.Match.IsNodePort() {
					addrs = append(addrs, f.Match.Addr.String())
				}
			}
		}
		for _, from := range []string{"10.244.1.10@vEthernet", "198.51.100.200@Ethernet", "192.0.2.11"} {
			for _, addr := range addrs {
				for _, port := range ports {
					for _, proto := range []string{"tcp", "udp"} {
						pkt, err := sim.ParsePacket(from, fmt.Sprintf("%s:%d/%s", addr, port, proto))
						if err != nil {
							t.Fatal(err)
						}
						if got, want := rules.Outcome(pkt, nil), sim.Trace(p, pkt); !got.Equal(want) {
							t.Errorf("%s -> %s:%d/%s\n got %s\nwant %s", from, addr, port, proto, got, want)
						}
					}
				}
			}
		}
	}
}

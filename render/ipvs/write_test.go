package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/rendertest"
)

// Addresses of the node that a source range admits precede the rule that drops
// the others (PKT-11).
func TestOutFilter(t *testing.T) {
	p := only(program(ir.IPv4), "ranges")
	admit(p, netip.MustParsePrefix("192.0.2.0/24"))
	var got strings.Builder
	for line := range strings.Lines(output(t, ir.NewPrograms(p), "iptables")) {
		if rule, ok := strings.CutPrefix(line, "-A KUBE-IPVS-OUT-FILTER "); ok {
			got.WriteString(rule)
		}
	}
	want := `-s 203.0.113.14/32 -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j RETURN
-s 192.0.2.11/32 -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j RETURN
-m addrtype --src-type LOCAL -m ipvs --vaddr 203.0.113.14 --vproto tcp --vport 80 -j DROP
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every part has an origin, and a consumer may stop at any.
func TestExplain(t *testing.T) {
	x := LowerAll(ir.NewPrograms(program(ir.IPv4), program(ir.IPv6)))
	rendertest.Explain(t, x, map[string]string{
		"ipvs 192.0.2.11:30080/tcp":                                                "node:30080/tcp default/web Service default/web",
		"ipvs 10.96.0.10:80/tcp -> 10.244.2.10:8080":                               "10.96.0.10:80/tcp default/web EndpointSlice default/web-1: endpoints[1] (ready)",
		"ipset KUBE-CLUSTER-IP 10.96.0.10,tcp:80":                                  "10.96.0.10:80/tcp default/web Service default/web",
		"ipset KUBE-6-LOAD-BALANCER-FW fd00::cb00:710e,tcp:80":                     "[fd00::cb00:710e]:80/tcp default/ranges Service default/ranges",
		"ipset KUBE-LOOP-BACK 10.244.1.10,tcp:8080,10.244.1.10":                    " default/local EndpointSlice default/local-1: endpoints[0] (ready)",
		"ipset KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,198.51.100.0/24": "203.0.113.14:80/tcp default/ranges Service default/ranges: spec.loadBalancerSourceRanges[0]",
	})
}

// manyServices returns n Services, each with a ClusterIP and five backends, one of them on the node.
func manyServices(n int) *ir.Program {
	p := program(ir.IPv4)
	p.Services = nil
	for i := range n {
		name := ir.Name{Namespace: "default", Name: fmt.Sprintf("svc-%05d", i)}
		port := ir.ServicePort{Service: name, Protocol: ir.TCP}
		s := ir.Service{Name: name, Pools: []ir.Pool{{Port: port}}, Frontends: []ir.Frontend{{
			Match:  ir.Match{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Protocol: ir.TCP, Port: 80},
			Port:   port,
			Routes: []ir.Route{{From: ir.Pods}, {From: ir.Any, SNAT: true}},
		}}}
		for j := range 5 {
			addr := netip.AddrFrom4([4]byte{10, byte(128 + j), byte(i >> 8), byte(i)})
			s.Pools[0].Backends = append(s.Pools[0].Backends, ir.Backend{AddrPort: netip.AddrPortFrom(addr, 8080), Local: j == 0})
		}
		p.Services = append(p.Services, s)
	}
	return p
}

package ipvs_test

import (
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/ipvs/eval"
)

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
		{"loopback", "127.0.0.1", "127.0.0.1:30080", "not proxied"},
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

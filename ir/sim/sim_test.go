package sim_test

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/sim"
)

const (
	pod     = "10.244.1.20@cni0"
	node    = "192.0.2.11"
	outside = "198.51.100.200@eth0"
	denied  = "198.18.7.7@eth0"
)

func TestTrace(t *testing.T) {
	const (
		both  = "10.244.1.10:8080 10.244.2.10:8080"
		masqd = "10.244.1.10:8080+snat 10.244.2.10:8080+snat"
	)
	tests := []struct {
		rule, from, to string
		iptables       string
		nftables       string // "" means as iptables
	}{
		{"PKT-1 pod to ClusterIP", pod, "10.96.0.10:80", both, ""},
		{"PKT-1 node to ClusterIP is not a pod", node, "10.96.0.10:80", masqd, ""},
		{"PKT-2 outside to ClusterIP", outside, "10.96.0.10:80", masqd, ""},
		{"PKT-3 external IP", pod, "198.18.0.10:80", masqd, ""},
		{"PKT-3 VIP", outside, "203.0.113.10:80", masqd, ""},
		{"PKT-3 node port", outside, "192.0.2.11:30080", masqd, ""},
		{"PKT-4 Local from outside", outside, "203.0.113.11:80", "10.244.1.10:8080", ""},
		{"PKT-5 Local from a pod", pod, "203.0.113.11:80", both, ""},
		{"PKT-6 Local from the node", node, "192.0.2.11:30081", masqd, ""},
		{"PKT-7 hairpin", "10.244.1.10@cni0", "10.96.0.10:80", "10.244.1.10:8080+snat 10.244.2.10:8080", ""},
		{"PKT-7 hairpin of another node's pod", "10.244.2.10@eth0", "10.96.0.10:80",
			"10.244.1.10:8080 10.244.2.10:8080+snat", both},
		{"PKT-8 ClusterIP without endpoints", pod, "10.96.0.13:80", "rejected", ""},
		{"PKT-8 node port without endpoints", outside, "192.0.2.11:30083", "rejected", ""},
		{"PKT-8 VIP without endpoints from the node", node, "203.0.113.13:80", "not proxied", "dropped"},
		{"PKT-9 Local without local endpoints", outside, "192.0.2.11:30082", "dropped", ""},
		{"PKT-9 internal Local without local endpoints", pod, "10.96.0.12:80", "dropped", ""},
		{"PKT-5 Local without local endpoints from a pod", pod, "192.0.2.11:30082", "10.244.2.10:8080", ""},
		{"PKT-10 outside the ranges", denied, "203.0.113.14:80", "dropped", ""},
		{"PKT-10 within the ranges", outside, "203.0.113.14:80", "10.244.1.10:8080+snat", ""},
		{"PKT-10 ranges without endpoints", denied, "203.0.113.13:80", "rejected", "dropped"},
		{"PKT-12 VIP's other port", outside, "203.0.113.10:81", "not proxied", ""},
		{"PKT-13 ClusterIP's other port", pod, "10.96.0.10:81", "not proxied", "rejected"},
		{"PKT-13 other protocol", pod, "10.96.0.10:80/udp", "not proxied", "rejected"},
		{"PKT-14 unallocated", pod, "10.96.7.7:80", "not proxied", "dropped"},
		{"PKT-16 loopback", "127.0.0.1", "127.0.0.1:30080", masqd, "not proxied"},
		{"PKT-16 loopback without endpoints", "127.0.0.1", "127.0.0.1:30083", "rejected", "not proxied"},
		{"node port at an address that is not the node's", pod, "192.0.2.12:30080", "not proxied", ""},
		{"affinity", pod, "10.96.0.15:53/udp", both + " (affinity)", ""},
	}
	for _, tt := range tests {
		pkt, err := sim.ParsePacket(tt.from, tt.to)
		if err != nil {
			t.Fatalf("%s: %v", tt.rule, err)
		}
		for mode, want := range map[ir.Mode]string{ir.ModeIPTables: tt.iptables, ir.ModeNFTables: tt.nftables} {
			if want == "" {
				want = tt.iptables
			}
			p := irtest.Program(mode)
			got := sim.Trace(p, pkt)
			if got.String() != want {
				t.Errorf("%s: %s %s -> %s\n got %s\nwant %s", mode, tt.rule, tt.from, tt.to, got, want)
			}
			explained, steps := sim.Explain(p, pkt)
			if !explained.Equal(got) || len(steps) == 0 {
				t.Errorf("%s: %s: Explain gives %s in %d steps, Trace %s", mode, tt.rule, explained, len(steps), got)
			}
		}
	}
}

// Node ports restricted to a prefix (SNAP-73), rejected elsewhere only in mode
// iptables (PKT-15).
func TestTraceNodePortAddresses(t *testing.T) {
	for mode, want := range map[ir.Mode][2]string{
		ir.ModeIPTables: {"not proxied", "rejected"},
		ir.ModeNFTables: {"not proxied", "not proxied"},
	} {
		p := irtest.Program(mode)
		p.Node.NodePorts.All = false
		p.Node.NodePorts.Prefixes = []ir.NodePortPrefix{{Prefix: p.Node.Detector.Prefix, Assigned: true}}
		for i, to := range []string{"192.0.2.11:30080", "192.0.2.11:30083"} {
			pkt, _ := sim.ParsePacket(outside, to)
			if got := sim.Trace(p, pkt).String(); got != want[i] {
				t.Errorf("%s: %s: got %s, want %s", mode, to, got, want[i])
			}
		}
		pkt, _ := sim.ParsePacket(pod, "10.244.1.1:30080")
		if got := sim.Trace(p, pkt).String(); got != "10.244.1.10:8080+snat 10.244.2.10:8080+snat" {
			t.Errorf("%s: the address inside: got %s", mode, got)
		}
		pkt, _ = sim.ParsePacket(pod, "10.244.1.99:30080")
		if got := sim.Trace(p, pkt).String(); got != "not proxied" {
			t.Errorf("%s: an address inside that the node has not: got %s", mode, got)
		}
	}
}

func TestExplainNamesTheReason(t *testing.T) {
	tests := []struct{ from, to, want string }{
		{denied, "203.0.113.14:80", "Service default/ranges: spec.loadBalancerSourceRanges"},
		{pod, "10.96.0.13:80", "Service default/none (no ready endpoint)"},
		{pod, "10.96.0.10:80", "config: clusterCIDR"},
		{pod, "10.96.0.10:80", "EndpointSlice default/web-1: endpoints[1] (ready)"},
		{pod, "10.96.7.7:80", "ServiceCIDR kubernetes: spec.cidrs[0]"},
	}
	p := irtest.Program(ir.ModeNFTables)
	for _, tt := range tests {
		pkt, err := sim.ParsePacket(tt.from, tt.to)
		if err != nil {
			t.Fatal(err)
		}
		_, steps := sim.Explain(p, pkt)
		var all strings.Builder
		for _, s := range steps {
			all.WriteString(s.Origin.String() + "\n")
		}
		if !strings.Contains(all.String(), tt.want) {
			t.Errorf("%s -> %s: no step has origin %q:\n%s", tt.from, tt.to, tt.want, all.String())
		}
	}
}

func TestParsePacketErrors(t *testing.T) {
	for _, tt := range [][2]string{
		{"x", "10.0.0.1:80"}, {"10.0.0.1", "10.0.0.2"}, {"10.0.0.1", "10.0.0.2:80/icmp"},
		{"10.0.0.1", "[fd00::1]:80"}, {"10.0.0.1", "node:80"}, {"10.0.0.1", "10.0.0.2:0"},
	} {
		if _, err := sim.ParsePacket(tt[0], tt[1]); err == nil {
			t.Errorf("ParsePacket(%q, %q): no error", tt[0], tt[1])
		}
	}
}

// An external IP that is also an address of the node, and a node port of the same
// number, both without endpoints: the test checks which verdict applies.
func TestTraceTwoThatRefuse(t *testing.T) {
	for _, tt := range []struct {
		from string
		want map[ir.Mode]string
	}{
		{outside, map[ir.Mode]string{ir.ModeNFTables: "rejected", ir.ModeIPTables: "dropped"}},
		{node, map[ir.Mode]string{ir.ModeNFTables: "dropped", ir.ModeIPTables: "dropped"}},
	} {
		for mode, want := range tt.want {
			p := irtest.Program(mode)
			pkt, err := sim.ParsePacket(tt.from, "192.0.2.11:30083")
			if err != nil {
				t.Fatal(err)
			}
			s := &p.Services[0]
			s.Frontends = append(s.Frontends, ir.Frontend{Kind: ir.ExternalIP, Fallback: ir.Drop,
				Match: ir.Match{Addr: pkt.Dst, Protocol: ir.TCP, Port: 30083}})
			if got := sim.Trace(p, pkt).String(); got != want {
				t.Errorf("%s: from %s: got %s, want %s", mode, tt.from, got, want)
			}
		}
	}
}

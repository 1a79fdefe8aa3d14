package rules

import (
	"testing"

	"github.com/proxyc/proxyc/ir/sim"
)

// The counter is that of the element that matched, or of the rule.
func TestCounted(t *testing.T) {
	const listed = `table ip other {
	chain c {
		comment "of another program"
		type filter hook forward priority filter; policy accept;
		ip saddr { 10.0.0.1,
			   10.0.0.2 } counter packets 3 bytes 180 drop
		tcp dport 8080 counter packets 7 bytes 420 drop
		tcp dport 8081 drop
	}
}
table ip proxyc {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		counter
		elements = { 10.96.0.1 . tcp . 80 counter packets 5 bytes 300 : goto a,
			     110.96.0.1 . tcp . 80 counter packets 6 bytes 360 : goto b,
			     10.96.0.2 . tcp . 80 counter packets 0 bytes 0 : goto b }
	}
}
`
	const saved = `*nat
:PREROUTING ACCEPT [7:420]
:KUBE-SERVICES - [0:0]
[7:420] -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[0:0] -A KUBE-SERVICES -d 10.96.0.9/32 -j KUBE-SVC-A
[4:240] -A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-B
COMMIT
*filter
:KUBE-SERVICES - [0:0]
[9:540] -A KUBE-SERVICES -d 10.96.0.7/32 -j REJECT
COMMIT
`
	for _, tt := range []struct {
		met  sim.Met
		want uint64
	}{
		{sim.Met{Table: "ip other", Chain: "c", Rule: 2}, 7},
		{sim.Met{Table: "ip other", Chain: "c", Rule: 3}, 0},
		{sim.Met{Table: "ip other", Chain: "c"}, 0},
		{sim.Met{Table: "ip none", Chain: "c", Rule: 1}, 0},
		{sim.Met{Table: "ip proxyc", Chain: "c", Rule: 1, Element: "10.96.0.1 . tcp . 80 of service-ips"}, 5},
		{sim.Met{Table: "ip proxyc", Chain: "c", Rule: 1, Element: "10.96.0.2 . tcp . 80 of service-ips"}, 0},
		{sim.Met{Table: "nat", Chain: "PREROUTING", Rule: 1}, 7},
		{sim.Met{Table: "nat", Chain: "KUBE-SERVICES", Rule: 2}, 4},
		{sim.Met{Table: "filter", Chain: "KUBE-SERVICES", Rule: 1}, 9},
		{sim.Met{Table: "filter", Chain: "KUBE-SERVICES"}, 0},
	} {
		if got := counted(listed, saved, &tt.met); got != tt.want {
			t.Errorf("%+v: %d packets, want %d", tt.met, got, tt.want)
		}
	}
}

package trace

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m, nil) }

// Tables that proxyc does not follow are named as unknown only if they contain something that can
// affect a packet.
func TestTraceKernelNamesTablesThatItDoesNotFollow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ plane, does, want string }{
		{"nftables", "iptables-legacy -t filter -L -n; nft add table netdev ev; nft add chain netdev ev in '{ type filter hook ingress device lo priority 0; policy accept; }'", ""},
		{"nftables", "iptables-legacy -A FORWARD -p tcp --dport 8080 -j DROP", "because: table legacy iptables filter, chain FORWARD, rule 1 (foreign) drops the packet"},
		{"nftables", "iptables-legacy -P FORWARD DROP", "because: table legacy iptables filter, chain FORWARD (foreign) drops the packet: policy drop"},
		{"nftables", "nft add table netdev ev; nft add chain netdev ev in '{ type filter hook ingress device lo priority 0; policy accept; }'; nft add rule netdev ev in counter; nft add rule netdev ev in counter accept", ""},
		{"nftables", "nft add table netdev ev; nft add chain netdev ev in '{ type filter hook ingress device lo priority 0; policy accept; }'; nft add rule netdev ev in tcp dport 80 drop",
			"not checked: table netdev ev has 1 rule, "},
		{"nftables", "nft add table netdev ev; nft add chain netdev ev in '{ type filter hook ingress device lo priority 0; policy drop; }'", "not checked: table netdev ev has a chain with the policy drop"},
		{"nftables", "nft add table inet fw; nft add chain inet fw f '{ type filter hook forward priority 5; }'; nft add rule inet fw f tcp dport 8080 reject with icmpx type admin-prohibited",
			"because: table inet fw, chain f, rule 1 (foreign) drops the packet: meta l4proto tcp th dport 8080 reject with icmpx admin-prohibited\n"},
		{"nftables", "nft add table ip fw; nft add chain ip fw f '{ type filter hook forward priority 5; }'; nft add rule ip fw f ip daddr 10.244.0.0/16 reject with icmp type host-prohibited",
			"because: table ip fw, chain f, rule 1 (foreign) drops the packet: ip daddr 10.244.0.0/16 reject with icmp host-prohibited\n"},
		{"iptables-nft", "nft add table inet fw; nft add chain inet fw f '{ type filter hook forward priority 5; }'; nft add rule inet fw f tcp dport 8080 reject with tcp reset",
			"because: table inet fw, chain f, rule 1 (foreign) drops the packet: meta l4proto tcp th dport 8080 reject with tcp reset\n"},
		{"iptables-nft", "iptables-nft -t mangle -L -n; iptables-nft -t raw -N empty; iptables-legacy -t filter -L -n", ""},
		{"iptables-nft", "iptables-nft -t mangle -A FORWARD -p tcp --dport 8080 -j DROP", "because: table mangle, chain FORWARD, rule 1 (foreign) "},
		{"iptables-nft", "iptables-nft -t raw -A PREROUTING -p tcp --dport 80 -j DROP; iptables-nft -t raw -A OUTPUT -p tcp -j NOTRACK", "because: table raw, chain PREROUTING, rule 1 (foreign) "},
		{"iptables-nft", "iptables-nft -t raw -A PREROUTING -p tcp --dport 80 -j NOTRACK", "because: table raw, chain PREROUTING, rule 1 (foreign) determines the result"},
		{"iptables-nft", "iptables-legacy -A FORWARD -p tcp --dport 8080 -j DROP", "because: table legacy iptables filter, chain FORWARD, rule 1 (foreign) "},
		{"iptables-legacy", "iptables-legacy -t mangle -A FORWARD -p tcp --dport 8080 -j DROP", "because: table mangle, chain FORWARD, rule 1 (foreign) "},
		{"iptables-legacy", "nft add table ip filter; nft add chain ip filter FORWARD '{ type filter hook forward priority 0; }'; nft add rule ip filter FORWARD tcp dport 8080 drop",
			"table ip filter, chain FORWARD, rule 1 (foreign) drops the packet"},
	} {
		t.Run(tt.plane+" "+tt.does, func(t *testing.T) {
			t.Parallel()
			w := nodetest.Applied(t, tt.plane)
			if out, code := w.Run("sh", "-ec", tt.does); code != 0 {
				t.Fatal(out)
			}
			code := nodetest.ExitFindings
			if tt.want == "" {
				code = nodetest.ExitDone
			}
			out, got := w.Proxyc("trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80")
			if got != code || !strings.Contains(out, tt.want) || tt.want == "" && strings.Contains(out, "not checked") {
				t.Errorf("exit %d, want %d and %q in:\n%s", got, code, tt.want, out)
			}
		})
	}
}

// Foreign tables are followed in the order of the kernel: the first to translate wins, and chains
// after iptables see the packet as iptables changed it.
func TestTraceKernelFollowsPriorities(t *testing.T) {
	t.Parallel()
	const served = "=> 10.244.1.97:8080\n"
	cases := []struct {
		chain, rule string
		from        string
		code        int
		want        []string
	}{
		{"ip ev type nat hook prerouting priority -110", "ip daddr 10.96.0.97 tcp dport 80 dnat to 10.244.1.12:8080", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"=> 10.244.1.12:8080\n", "expected: 10.244.1.97:8080", "because: table ip ev, chain p, rule 1 (foreign) determines the result"}},
		{"inet ev type nat hook prerouting priority -110", "ip daddr 10.96.0.97 tcp dport 80 dnat ip to 10.244.1.12:8080", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"=> 10.244.1.12:8080\n", "because: table inet ev, chain p, rule 1 (foreign) "}},
		{"ip ev type nat hook output priority -110", "ip daddr 10.96.0.97 tcp dport 80 dnat to 10.244.1.12:8080", "node", nodetest.ExitFindings,
			[]string{"=> 10.244.1.12:8080\n", "because: table ip ev, chain p, rule 1 (foreign) "}},
		{"ip ev type nat hook output priority -110", "ip daddr 10.96.0.97 tcp dport 80 dnat to 10.244.1.12:8080", "10.244.1.5@cni0", nodetest.ExitDone, []string{served}},
		{"ip ev type nat hook prerouting priority -90", "ip daddr 10.96.0.97 tcp dport 80 dnat to 10.244.1.12:8080", "10.244.1.5@cni0", nodetest.ExitDone, []string{served}},
		{"ip ev type nat hook prerouting priority -100", "ip daddr 10.96.0.97 tcp dport 80 dnat to 10.244.1.12:8080", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"unsupported: table ip ev, chain p: has the same priority as another chain", "if it comes first: 10.244.1.12:8080"}},
		{"ip ev type nat hook prerouting priority -100", "ip daddr 10.96.0.97 ip dscp 1 tcp dport 80 dnat to 10.244.1.12:8080", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"unsupported: table ip ev, chain p, rule 1: "}},
		{"ip ev type filter hook prerouting priority -100", "ip daddr 10.96.0.97 drop", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"unsupported: table ip ev, chain p: has the same priority as another chain, so the order is unknown; if it comes first: dropped"}},
		{"ip ev type filter hook prerouting priority -100", "ip daddr 10.96.0.98 drop", "10.244.1.5@cni0", nodetest.ExitDone, []string{served}},
		{"ip ev type filter hook prerouting priority -150", "ip daddr 10.96.0.97 drop", "10.244.1.5@cni0", nodetest.ExitFindings, []string{"=> dropped\n", "because: table ip ev, chain p, rule 1 (foreign) "}},
		{"ip ev type filter hook prerouting priority -150", "ip daddr 10.244.1.97 drop", "10.244.1.5@cni0", nodetest.ExitDone, []string{served}},
		{"ip ev type filter hook forward priority 0", "ip daddr 10.96.0.97 drop", "10.244.1.5@cni0", nodetest.ExitDone, []string{served}},
		{"ip ev type filter hook forward priority 0; policy drop", "ct status dnat accept", "10.244.1.5@cni0", nodetest.ExitDone, []string{served}},
		{"ip ev type nat hook postrouting priority 110", "ip daddr 10.244.1.97 masquerade", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"=> 10.244.1.97:8080+snat\n", "because: table ip ev, chain p, rule 1 (foreign) "}},
		{"ip ev type filter hook prerouting priority -150", "ip daddr 10.96.0.97 meta mark set mark or 0x4000", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"=> 10.244.1.97:8080+snat\n", "because: table ip ev, chain p, rule 1 (foreign) determines the result"}},
		{"ip ev type filter hook output priority -150", "ip daddr 10.96.0.97 meta mark set mark and 0xffffbfff", "node", nodetest.ExitDone, []string{"=> 10.244.1.97:8080+snat\n"}},
		{"ip ev type filter hook prerouting priority -150", "meta mark set mark or 0x4000; }; chain q { type filter hook prerouting priority -150; meta mark set mark and 0xffffbfff", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"unsupported: table ip ev, chain q: has the same priority as another chain, so the order is unknown; if it comes first: 10.244.1.97:8080+snat"}},
		{"ip ev type filter hook forward priority -10", "meta mark set mark or 0x4000", "10.244.1.5@cni0", nodetest.ExitFindings,
			[]string{"=> 10.244.1.97:8080+snat\n", "because: table ip ev, chain p, rule 1 (foreign) determines the result"}},
	}
	for _, variant := range []string{"nft", "legacy"} {
		plane := "iptables-" + variant
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w := nodetest.Applied(t, plane)
			for _, tt := range cases {
				name := tt.chain + " " + tt.rule + " " + tt.from
				family, rest, _ := strings.Cut(tt.chain, " ev ")
				if out, code := w.Run("nft", "table", family, "ev", "{ chain p { "+rest+"; "+tt.rule+"; }; }"); code != 0 {
					t.Fatalf("%s: %s", name, out)
				}
				out, code := w.Proxyc("trace", "--kernel", "--from", tt.from, "--to", "ns/a:80")
				for _, want := range tt.want {
					if code != tt.code || !strings.Contains(out, want) {
						t.Errorf("%s: exit %d, want %d and %q in:\n%s", name, code, tt.code, want, out)
					}
				}
				if out, code := w.Run("nft", "delete", "table", family, "ev"); code != 0 {
					t.Fatalf("%s: %s", name, out)
				}
			}
		})
	}
}

package trace_test

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// A planted fault in the kernel's rules is reported by prove, by trace --kernel with the rule, and
// by apply --check -o wide with what is there and should not be, or the reverse. Foreign rules are
// followed as far as proxyc understands them.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, plane, fault string
		trace              []string // what trace --kernel reports
		check              string   // what apply --check -o wide reports
		prove              string   // what prove reports
	}{
		{"element deleted", "nftables", "nft delete element ip proxyc service-ips { 10.96.0.97 . tcp . 80 }",
			[]string{"=> rejected", "expected: 10.244.1.97:8080", "chain services: without effect, as element 10.96.0.97 . tcp . 80 of service-ips is missing: ", "goto "},
			"want: 10.96.0.97 . tcp . 80", ""},
		{"rule inserted", "nftables", "nft insert rule ip proxyc services ip daddr 10.96.0.97 counter drop",
			[]string{"=> dropped", "because: table ip proxyc, chain services, rule 1 is not expected: ip daddr 10.96.0.97 counter drop"},
			"have: ip daddr 10.96.0.97 counter drop", ""},
		{"chain flushed", "nftables", "nft flush chain ip proxyc services",
			[]string{"expected: 10.244.1.97:8080", "table ip proxyc, chain services: missing or not reached: "}, "want: ", ""},
		{"foreign drop", "nftables", "nft table inet fw { chain late { type filter hook forward priority 50; policy accept; ct state established,related accept; ip6 saddr fd00::/8 drop; tcp dport 8080 log prefix \"x\" drop; }; }",
			[]string{"=> dropped", "because: table inet fw, chain late, rule 3 (foreign) drops the packet: "},
			"foreign rules that may drop: inet fw chain late", ""},
		{"foreign policy", "nftables", "nft table inet fw { chain late { type filter hook forward priority 50; policy drop; ct state vmap { established : accept, invalid : drop }; }; }",
			[]string{"=> dropped", "because: table inet fw, chain late (foreign) drops the packet: policy drop"}, "foreign rules that may drop: inet fw chain late", ""},
		{"foreign, unsupported", "nftables", "nft table inet fw { chain late { type filter hook forward priority 50; limit rate 1/second drop; }; }",
			[]string{"=> not known", "unsupported: table inet fw, chain late, rule 1: limit rate", "if that has no effect on the packet: 10.244.1.97:8080"}, "foreign rules that may drop: inet fw chain late", ""},
		{"rule inserted", "iptables-nft", "iptables-nft -t nat -I KUBE-SERVICES -d 10.96.0.97 -j ACCEPT",
			[]string{"=> not proxied", "because: table nat, chain KUBE-SERVICES, rule 1 is not expected: -d 10.96.0.97/32 -j ACCEPT"},
			"have: -d 10.96.0.97/32 -j ACCEPT", ""},
		{"foreign drop", "iptables-nft", "iptables-nft -I FORWARD -d 10.244.0.0/16 -j DROP",
			[]string{"=> dropped", "because: table filter, chain FORWARD, rule 1 (foreign) drops the packet: -d 10.244.0.0/16 -j DROP"},
			"foreign rules that may drop: ip filter chain FORWARD", ""},
		{"foreign policy", "iptables-legacy", "iptables-legacy -P FORWARD DROP",
			[]string{"=> dropped", "because: table filter, chain FORWARD (foreign) drops the packet: policy drop"},
			"foreign rules that may drop: iptables-legacy table filter chain FORWARD", ""},
		{"foreign nf_tables", "iptables-nft", "nft table inet fw { chain late { type filter hook forward priority 50; ip daddr 10.244.1.97 drop; }; }",
			[]string{"=> dropped", "because: table inet fw, chain late, rule 1 (foreign) drops the packet: "},
			"foreign rules that may drop: inet fw chain late", ""},
		{"chain flushed", "iptables-legacy", "iptables-legacy -t nat -F KUBE-SERVICES",
			[]string{"=> not proxied", "chain KUBE-SERVICES: missing or not reached: ", "-d 10.96.0.97/32"}, "want: ", ""},
		{"real server removed", "ipvs", "ipvsadm -d -t 10.96.0.97:80 -r 10.244.1.97:8080",
			[]string{"=> rejected", "expected: 10.244.1.97:8080", "because: ipvs 10.96.0.97:80/tcp: missing or not reached: -a -t 10.96.0.97:80 -r 10.244.1.97:8080 -m -w 1"},
			"ipvs 10.96.0.97:80/tcp -> 10.244.1.97:8080", "ipvs 10.96.0.97:80/tcp: -a -t 10.96.0.97:80 -r 10.244.1.97:8080"},
		{"virtual server removed", "ipvs", "ipvsadm -D -t 10.96.0.97:80",
			[]string{"=> not proxied", "because: ipvs 10.96.0.97:80/tcp: missing or not reached: -A -t 10.96.0.97:80 -s rr"},
			"ipvs 10.96.0.97:80/tcp", "ipvs 10.96.0.97:80/tcp: -A -t 10.96.0.97:80"},
		{"element removed", "ipvs", "ipset del KUBE-CLUSTER-IP 10.96.0.97,tcp:80",
			[]string{"=> rejected", "because: ipset KUBE-CLUSTER-IP: missing or not reached: 10.96.0.97,tcp:80"},
			"ipset KUBE-CLUSTER-IP 10.96.0.97,tcp:80", "ipset KUBE-CLUSTER-IP: 10.96.0.97,tcp:80"},
		{"address gone", "ipvs", "ip addr del 10.96.0.97/32 dev kube-ipvs0",
			[]string{"=> not proxied", "because: device kube-ipvs0: missing or not reached: 10.96.0.97"},
			"kube-ipvs0 10.96.0.97", "device kube-ipvs0: 10.96.0.97"},
		{"rule inserted", "ipvs", "iptables-nft -t nat -I KUBE-SERVICES -d 10.96.0.97 -j KUBE-MARK-MASQ",
			[]string{"=> 10.244.1.97:8080+snat", "because: table nat, chain KUBE-SERVICES, rule 1 is not expected: -d 10.96.0.97/32 -j KUBE-MARK-MASQ"},
			"have: -d 10.96.0.97/32 -j KUBE-MARK-MASQ", "table nat, chain KUBE-SERVICES, rule 1: -d 10.96.0.97/32 -j KUBE-MARK-MASQ"},
		{"another weight", "ipvs", "ipvsadm -e -t 10.96.0.97:80 -r 10.244.1.97:8080 -m -w 3",
			[]string{"=> not known", "unsupported: ipvs 10.96.0.97:80/tcp: real server 10.244.1.97:8080 has a weight other than 1", "if that has no effect on the packet: 10.244.1.97:8080"},
			"ipvs 10.96.0.97:80/tcp -> 10.244.1.97:8080", "unsupported: ipvs 10.96.0.97:80/tcp: real server 10.244.1.97:8080 has a weight other than 1"},
		{"foreign drop", "ipvs", "iptables-nft -I INPUT -d 10.96.0.97 -j DROP",
			[]string{"=> dropped", "because: table filter, chain INPUT, rule 1 (foreign) drops the packet: -d 10.96.0.97/32 -j DROP"},
			"foreign rules that may drop: ip filter chain INPUT", "foreign rules that may drop: ip filter chain INPUT"},
		{"foreign drop of the backend", "ipvs", "iptables-nft -I OUTPUT -d 10.244.1.97 -j DROP",
			[]string{"=> dropped", "because: table filter, chain OUTPUT, rule 1 (foreign) drops the packet: -d 10.244.1.97/32 -j DROP"},
			"foreign rules that may drop: ip filter chain OUTPUT", "foreign rules that may drop: ip filter chain OUTPUT"},
		{"foreign nf_tables", "ipvs", "nft table inet fw { chain late { type filter hook input priority 50; ip daddr 10.96.0.97 drop; }; }",
			[]string{"=> dropped", "because: table inet fw, chain late, rule 1 (foreign) drops the packet: "},
			"foreign rules that may drop: inet fw chain late", "foreign rules that may drop: inet fw chain late"},
	} {
		t.Run(tt.plane+" "+tt.name, func(t *testing.T) {
			t.Parallel()
			w := nodetest.New(t, tt.plane)
			w.Forward()
			w.Write("cluster.yaml", applytest.Services("a"))
			trace := func() (string, int) {
				return w.Proxyc("trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80")
			}
			if out, code := w.Proxyc("apply"); code != 0 {
				t.Fatal(out)
			}
			if out, code := trace(); code != 0 || strings.Contains(out, "wanted") || strings.Contains(out, "unsupported") {
				t.Fatalf("before: exit %d\n%s", code, out)
			}
			w.Must(quotedFault(tt.fault))
			out, code := trace()
			for _, want := range tt.trace {
				if code != nodetest.ExitFindings || !strings.Contains(out, want) {
					t.Errorf("trace: exit %d, want 1 and %q in:\n%s", code, want, out)
				}
			}
			if out, _ := w.Proxyc("apply", "--check", "-o", "wide"); !strings.Contains(out, tt.check) {
				t.Errorf("check: want %q in:\n%s", tt.check, out)
			}
			if out, code := w.Proxyc("prove", "mode:"+w.Plane.Mode, "kernel"); !strings.Contains(out, tt.prove) || !strings.Contains(tt.name, "foreign") && code != nodetest.ExitFindings || strings.Contains(tt.name, "foreign") && !strings.Contains(out, "foreign rules that may drop") {
				t.Errorf("prove: exit %d\n%s", code, out)
			}
		})
	}
}

// quotedFault keeps braces and semicolons of nft's language from the shell.
func quotedFault(fault string) string {
	if rest, ok := strings.CutPrefix(fault, "nft "); ok {
		return "nft '" + rest + "'"
	}
	return fault
}

package trace_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m, nil) }

// A trace for a mode other than that of the node's rules reports that, instead of a verdict about
// missing rules.
func TestKernelOfAnotherMode(t *testing.T) {
	t.Parallel()
	haveIPVS := applytest.HaveIPVS(t)
	for _, tt := range []struct{ plane, mode, want string }{
		{"nftables", "iptables", "this node has rules of mode nftables (table ip proxyc), and none of the configured mode iptables"},
		{"nftables", "ipvs", "this node has rules of mode nftables (table ip proxyc), and none of the configured mode ipvs"},
		{"iptables-nft", "nftables", "this node has rules of mode iptables (iptables-nft nat KUBE-NODEPORTS), and none of the configured mode nftables"},
		{"iptables-legacy", "nftables", "this node has rules of mode iptables (iptables-legacy nat KUBE-NODEPORTS), and none of the configured mode nftables"},
		{"iptables-nft", "ipvs", "this node has rules of mode iptables (iptables-nft nat KUBE-NODEPORTS), and none of the configured mode ipvs"},
		{"ipvs", "iptables", "this node has rules of mode ipvs (iptables-nft nat KUBE-LOAD-BALANCER), and none of the configured mode iptables"},
	} {
		t.Run(tt.plane+" "+tt.mode, func(t *testing.T) {
			t.Parallel()
			if (tt.plane == "ipvs" || tt.mode == "ipvs") && !haveIPVS {
				t.Skip("the kernel has no ip_vs")
			}
			w := nodetest.Applied(t, tt.plane)
			for _, args := range [][]string{{"trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80"}, {"prove", "ir", "kernel"}} {
				if out, code := w.Proxyc(args[0], append(args[1:], "--mode", tt.mode)...); code != nodetest.ExitBad || !strings.Contains(out, tt.want) {
					t.Errorf("%s: exit %d, want %d and %q in:\n%s", args[0], code, nodetest.ExitBad, tt.want, out)
				}
				if out, code := w.Proxyc(args[0], args[1:]...); code != 0 {
					t.Errorf("%s of the mode that it has: exit %d:\n%s", args[0], code, out)
				}
			}
		})
	}
}

// The commands that prove prints for what it finds run as they are, and show it.
func TestProveKernelPrintsCommandsThatRun(t *testing.T) {
	t.Parallel()
	for plane, fault := range map[string]string{
		"nftables":        "nft insert rule ip proxyc services ip daddr 10.96.0.97 drop",
		"iptables-nft":    "iptables-nft -t nat -I KUBE-SERVICES -d 10.96.0.97 -j ACCEPT",
		"iptables-legacy": "iptables-legacy -t nat -I KUBE-SERVICES -d 10.96.0.97 -j ACCEPT",
	} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w := nodetest.Applied(t, plane)
			if out, code := w.Run("sh", "-ec", fault); code != 0 {
				t.Fatal(out)
			}
			for _, args := range [][]string{{"ir", "kernel"}, {"-o=text", "kernel", "ir", "--all"}} {
				out, _ := w.Proxyc("prove", args...)
				shown := 0
				for line := range strings.Lines(out) {
					command := strings.TrimSpace(line)
					if !strings.HasPrefix(command, "proxyc trace ") {
						continue
					}
					if traced, code := w.Run("sh", "-c", command); code != nodetest.ExitFindings || !strings.Contains(traced, "is not expected") {
						t.Errorf("%s: exit %d:\n%s", command, code, traced)
					}
					if shown++; shown == 5 {
						break
					}
				}
				if shown == 0 {
					t.Errorf("prove prints no command:\n%s", out)
				}
			}
		})
	}
}

// If a backend map lacks an element, trace and prove name it, with the share of affected
// connections. A packet that finds no element reaches a chain that selects again, and masquerades. If
// it finds none there, it is dropped.
func TestTraceKernelNamesLostBackends(t *testing.T) {
	t.Parallel()
	for slot, left := range []string{"10.244.1.98:8080", "10.244.1.97:8080"} {
		t.Run(left, func(t *testing.T) {
			t.Parallel()
			w := nodetest.New(t, "nftables")
			w.Forward()
			w.Write("cluster.yaml", strings.Replace(applytest.Services("a"), "[{addresses: [10.244.1.97]}]", "[{addresses: [10.244.1.97]}, {addresses: [10.244.1.98]}]", 1))
			lost := fmt.Sprintf("10.96.0.97 . tcp . 80 . %d", slot)
			w.Proxyc("apply")
			if out, code := w.Run("nft", "delete element ip proxyc backends { "+lost+" }"); code != 0 {
				t.Fatal(out)
			}
			out, code := w.Proxyc("trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80")
			for _, want := range []string{
				"=> dropped (25%) or " + left + "(66.67%) " + left + "+snat(33.33%) (75%)\n", ": map backends lacks " + lost + "\n", "because: table ip proxyc, chain ",
			} {
				if code != nodetest.ExitFindings || !strings.Contains(out, want) || strings.Contains(out, "is not expected") || strings.Count(out, "because") != 1 {
					t.Errorf("exit %d, want 1, one cause and %q in:\n%s", code, want, out)
				}
			}
			out, code = w.Proxyc("prove", "ir", "kernel")
			for _, want := range []string{"kernel  dropped (25%) or " + left, ": map backends lacks " + lost + "\n"} {
				if code != nodetest.ExitFindings || !strings.Contains(out, want) {
					t.Errorf("prove: exit %d, want 1 and %q in:\n%s", code, want, out)
				}
			}
		})
	}
}

// Affinity elements are compared, and a missing element without which a rule is not reached is
// named.
func TestTraceKernelNamesElements(t *testing.T) {
	t.Parallel()
	services := strings.Replace(applytest.Services("a"), "spec: {", "spec: {sessionAffinity: ClientIP, externalIPs: [203.0.113.9], ", 1) +
		"---\napiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: guarded}\n" +
		"spec: {type: LoadBalancer, clusterIP: 10.96.0.99, loadBalancerSourceRanges: [198.51.100.0/24], allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}\n" +
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}\n---\n" +
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: ns, name: guarded-1, labels: {kubernetes.io/service-name: guarded}}\n" +
		"addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.244.1.77]}]\n"
	for _, tt := range []struct{ does, to, want string }{
		{"nft list set ip proxyc affinity-addresses", "10.96.0.97:80", ""},
		{"nft delete element ip proxyc affinity-addresses '{ 10.96.0.97 }'", "10.96.0.97:80", "as element 10.96.0.97 of affinity-addresses is missing: "},
		{"nft delete element ip proxyc service-ips '{ 203.0.113.10 . tcp . 80 }'", "203.0.113.10:80", "as element 203.0.113.10 . tcp . 80 of service-ips is missing: "},
	} {
		t.Run(tt.does, func(t *testing.T) {
			t.Parallel()
			w := nodetest.New(t, "nftables")
			w.Forward()
			w.Write("cluster.yaml", services)
			if out, code := w.Proxyc("apply"); code != 0 {
				t.Fatal(out)
			}
			if out, code := w.Run("sh", "-ec", tt.does); code != 0 {
				t.Fatal(out)
			}
			code := nodetest.ExitFindings
			if tt.want == "" {
				code = nodetest.ExitDone
			}
			out, got := w.Proxyc("trace", "--kernel", "--from", "192.0.2.77@cni0", "--to", tt.to)
			if got != code || !strings.Contains(out, tt.want) || strings.Contains(out, "unsupported") {
				t.Errorf("exit %d, want %d and %q in:\n%s", got, code, tt.want, out)
			}
			if tt.to == "10.96.0.97:80" && !strings.Contains(out, "(affinity)") {
				t.Errorf("nothing is said of affinity:\n%s", out)
			}
		})
	}
}

// Foreign rules are reported with the operands that they compare.
func TestTraceKernelTellsOperands(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"tcp dport 8080 drop":                                        "rule 1 (foreign) drops the packet: meta l4proto tcp th dport 8080 drop",
		"tcp dport { 80, 8080 } drop":                                "meta l4proto tcp th dport { 80, 8080 } drop",
		"ip daddr { 10.244.0.0/16, 10.9.0.1 } drop":                  "ip daddr { 10.9.0.1/32, 10.244.0.0/16 } drop",
		"tcp dport { 1, 2, 3, 4, 5, 6, 7, 8, 9, 8080 } drop":         "th dport { 1, 2, 3, 4, 5, 6, 7, 8, … } drop",
		"tcp dport vmap { 80 : accept, 8080 : drop }":                "th dport vmap { 80 : accept, 8080 : drop }: drop",
		"ip daddr . tcp dport { 10.244.1.97 . 8080 } drop":           "ip daddr . th dport 10.244.1.97 . 8080 drop",
		"ip daddr != { 10.9.0.1, 10.9.0.2 } tcp dport != { 1 } drop": "ip daddr != { 10.9.0.1/32, 10.9.0.2/32 } meta l4proto tcp th dport != 1 drop",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := nodetest.Applied(t, "nftables")
			if out, code := w.Run("nft", "table ip fw { chain late { type filter hook forward priority 50; "+rule+"; }; }"); code != 0 {
				t.Fatal(out)
			}
			if out, _ := w.Proxyc("trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80"); !strings.Contains(out, want) || strings.Contains(out, "anonymous") {
				t.Errorf("want %q in:\n%s", want, out)
			}
		})
	}
}

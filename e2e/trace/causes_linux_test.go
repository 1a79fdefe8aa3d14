package trace

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// A rule of any program is named as a cause only if the outcome changes without it. All causes are
// named.
func TestTraceKernelBlamesWhatDecides(t *testing.T) {
	t.Parallel()
	const (
		masquerades = "nft delete chain ip proxyc nat-postrouting"
		marks       = "nft 'table inet foo { chain d { type filter hook prerouting priority -150; ip daddr 10.96.0.10 meta mark set meta mark or 0x4000; }; }'"
		drops       = "nft 'table inet one { chain f { type filter hook forward priority 10; ip daddr 10.244.1.10 drop; }; }'"
		dropsToo    = "nft 'table inet two { chain f { type filter hook forward priority 20; policy drop; }; }'"
		counts      = "nft insert rule ip proxyc nat-prerouting meta mark set meta mark or 0x0"
		lacks       = "table ip proxyc, chain nat-postrouting: missing or not reached: "
	)
	for _, tt := range []struct {
		name, plane string
		does        []string
		because     []string // all reported causes, each by a part of its text
	}{
		{"ours is missing", "nftables", []string{masquerades}, []string{lacks}},
		{"a foreign rule is harmless", "nftables", []string{marks}, nil},
		{"ours is missing beside a harmless foreign rule", "nftables", []string{masquerades, marks}, []string{lacks}},
		{"ours is missing behind a foreign rule that drops", "nftables", []string{masquerades, drops},
			[]string{"table inet one, chain f, rule 1 (foreign) drops the packet", lacks}},
		{"two drop", "nftables", []string{drops, marks, dropsToo},
			[]string{"table inet one, chain f, rule 1 (foreign) drops the packet", "table inet two, chain f (foreign) drops the packet: policy drop"}},
		{"two drop", "iptables-nft", []string{"iptables-nft -I FORWARD -d 10.244.1.10 -j DROP", marks, drops},
			[]string{"table filter, chain FORWARD, rule 1 (foreign)", "table inet one, chain f, rule 1 (foreign)"}},
		{"two drop", "iptables-legacy", []string{"iptables-legacy -I FORWARD -d 10.244.1.10 -j DROP; iptables-legacy -P FORWARD DROP; iptables-legacy -I FORWARD 2 -p tcp -j DROP"},
			[]string{"table filter, chain FORWARD, rule 1 (foreign)", "table filter, chain FORWARD, rule 2 (foreign)"}},
		{"a policy behind ours", "iptables-legacy", []string{"iptables-legacy -F KUBE-FORWARD; iptables-legacy -P FORWARD DROP"},
			[]string{"table filter, chain FORWARD (foreign) drops the packet: policy drop", "table filter, chain KUBE-FORWARD: missing or not reached: "}},
		{"ours is missing beside a harmless foreign rule", "iptables-nft", []string{"iptables-nft -t nat -F KUBE-POSTROUTING; iptables-nft -t nat -I PREROUTING -d 10.96.0.10 -j MARK --set-xmark 0x4000/0x4000"},
			[]string{"table nat, chain KUBE-POSTROUTING: missing or not reached: "}},
		{"a foreign rule translates the source", "nftables", []string{"nft 'table ip fw { chain post { type nat hook postrouting priority 90; ip daddr 10.244.0.0/16 snat to 192.0.2.77; }; }'"},
			[]string{"table ip fw, chain post, rule 1 (foreign) translates the source first: ip daddr 10.244.0.0/16 snat to 192.0.2.77"}},
		{"a foreign rule translates the source", "iptables-nft", []string{"iptables-nft -t nat -I POSTROUTING -d 10.244.0.0/16 -j SNAT --to-source 192.0.2.77"},
			[]string{"table nat, chain POSTROUTING, rule 1 (foreign) translates the source first: "}},
		{"a route behind a drop", "nftables", []string{"ip route add blackhole 10.244.1.10", "nft 'table inet one { chain f { type filter hook prerouting priority -300; ip daddr 10.96.0.10 drop; }; }'"},
			[]string{"table inet one, chain f, rule 1 (foreign) drops the packet", "route to 10.244.1.10 from 192.0.2.200 by eth0: a blackhole route or rule"}},
		{"a harmless rule in ours", "nftables", []string{counts, masquerades}, []string{lacks}},
	} {
		t.Run(tt.plane+" "+tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := inTopology(t, tt.plane)
			if out, code := w.Proxyc("apply"); code != 0 {
				t.Fatal(out)
			}
			w.Must(tt.does...)
			out, code := w.Proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "10.96.0.10:80")
			var causes []string
			for line := range strings.Lines(out) {
				if cause, ok := strings.CutPrefix(strings.TrimSpace(line), "because: "); ok {
					causes = append(causes, cause)
				}
			}
			same := len(causes) == len(tt.because)
			for i := range min(len(causes), len(tt.because)) {
				same = same && strings.Contains(causes[i], tt.because[i])
			}
			wanted := nodetest.ExitFindings
			if tt.because == nil {
				wanted = nodetest.ExitDone
			}
			if !same || code != wanted {
				t.Errorf("exit %d, want %d, because of %q in:\n%s", code, wanted, tt.because, out)
			}
		})
	}
}

// Rules that accept first packets and drop replies are causes; those that accept replies are not.
func TestTraceKernelFollowsReplies(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"nftables", "iptables-nft"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w, topo := inTopology(t, plane)
			w.Must("proxyc apply " + strings.Join(w.Args, " "))
			for _, tt := range []struct{ rules, cause string }{
				{"nft 'table inet foo { chain c { type filter hook forward priority 0; policy drop; ct state new accept; }; }'", "table inet foo, chain c (foreign) drops the packet: policy drop, for replies"},
				{"nft 'table inet foo { chain c { type filter hook forward priority 0; policy drop; ct state new accept; ct state established,related accept; }; }'", ""},
				{"nft 'table inet foo { chain c { type filter hook forward priority 0; policy drop; ct state vmap { established : accept, new : accept }; }; }'", ""},
				{"nft 'table inet foo { chain c { type filter hook forward priority 0; ct state established drop; }; }'", "table inet foo, chain c, rule 1 (foreign) drops the packet: ct state established drop, for "},
				{"nft 'table inet foo { chain c { type filter hook forward priority 0; ip daddr 10.244.1.10 ct state established drop; }; }'", "table inet foo, chain c, rule 1 (foreign) drops the packet: ip daddr 10.244.1.10 ct state established drop, for later packets"},
				{"iptables-nft -I FORWARD -m conntrack --ctstate ESTABLISHED -d 10.244.0.0/16 -j DROP; nft add table inet foo", "--ctstate ESTABLISHED -j DROP, for later packets"},
				{"nft 'table inet foo { chain c { type filter hook prerouting priority -300; ip saddr 10.244.1.10 tcp sport 8080 drop; }; }'", "table inet foo, chain c, rule 1 (foreign) drops the packet: ip saddr 10.244.1.10 tcp sport 8080 drop, for replies"},
				{"iptables-nft -I FORWARD -m conntrack --ctstate ESTABLISHED -s 10.244.0.0/16 -j DROP; nft add table inet foo", "chain FORWARD, rule 1 (foreign) drops the packet: -s 10.244.0.0/16 -m conntrack --ctstate ESTABLISHED -j DROP, for replies"},
			} {
				w.Must(tt.rules)
				out, code := w.Proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "10.96.0.10:80")
				result, want, wait := "=> 10.244.1.10:8080+snat\n", nodetest.ExitDone, applytest.ReplyTimeout
				if tt.cause != "" {
					result, want, wait = "=> dropped\n", nodetest.ExitFindings, time.Second
				}
				if code != want || !strings.Contains(out, result) || !strings.Contains(out, tt.cause) {
					t.Errorf("%s: exit %d, want %d and %q:\n%s", tt.rules, code, want, tt.cause, out)
				}
				if _, err := topo.Try("ext", "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), wait); (err == nil) != (tt.cause == "") {
					t.Errorf("%s: really: %v", tt.rules, err)
				}
				w.Must("nft delete table inet foo; for d in s d; do iptables-nft -D FORWARD -m conntrack --ctstate ESTABLISHED -$d 10.244.0.0/16 -j DROP || true; done")
			}
		})
	}
}

// If an element that excludes a client is missing, later rules are not named as the cause.
func TestTraceKernelBlamesNoFollowingRule(t *testing.T) {
	t.Parallel()
	w, _ := inTopology(t, "nftables")
	w.Write("cluster.yaml", `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}
- {apiVersion: v1, kind: Service, metadata: {name: lb, namespace: ns}, spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [198.51.100.0/24], clusterIP: 10.96.0.31, clusterIPs: [10.96.0.31], ipFamilies: [IPv4], ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.31}]}}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: lb-1, namespace: ns, labels: {kubernetes.io/service-name: lb}}, addressType: IPv4, endpoints: [{addresses: [10.244.1.10], nodeName: node1}], ports: [{port: 8080}]}
`)
	if out, code := w.Proxyc("apply"); code != 0 {
		t.Fatal(out)
	}
	w.Must("nft delete element ip proxyc service-ips '{ 203.0.113.31 . tcp . 80 }'")
	out, code := w.Proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "203.0.113.31:80")
	if code != nodetest.ExitFindings || strings.Count(out, "because: ") != 1 || !strings.Contains(out, "because: table ip proxyc, chain services: without effect, as element 203.0.113.31 . tcp . 80 of service-ips is missing: ") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	w.Must("nft delete element ip proxyc service-ips '{ 10.96.0.31 . tcp . 80 }'")
	out, code = w.Proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "10.96.0.31:80")
	if code != nodetest.ExitFindings || strings.Count(out, "because: ") != 1 || !strings.Contains(out, "as element 10.96.0.31 . tcp . 80 of service-ips is missing: ") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// Rules of kube-proxy that serve as desired are no cause of a foreign drop, although proxyc writes
// other ones.
func TestTraceKernelBlamesNoRuleOfKubeProxy(t *testing.T) {
	t.Parallel()
	for mode, load := range map[string]string{
		"iptables": "sed 's/-m nfacct --nfacct-name *[^ ]*//' $TAKEOVER/kube-proxy.iptables | iptables-nft-restore",
		"nftables": "nft -f $TAKEOVER/kube-proxy.nft",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := nodetest.New(t, "nftables")
			w.Forward()
			dir, err := filepath.Abs("../../testdata/apply/takeover")
			if err != nil {
				t.Fatal(err)
			}
			w.Must("export TAKEOVER="+dir+"; "+load, "nft 'table inet fw { chain f { type filter hook forward priority -5; ip daddr 10.244.0.0/16 drop; }; }'")
			out, code := w.Run("proxyc", "trace", "-c", dir+"/config.yaml", "-s", dir+"/cluster.yaml", "--mode", mode, "--kernel", "--from", "10.244.1.5@cni0", "--to", "10.96.0.10:80")
			const because = "  because: "
			if code != nodetest.ExitFindings || strings.Count(out, because) != 1 || !strings.Contains(out, because+"table inet fw, chain f, rule 1 (foreign) drops the packet: ip daddr 10.244.0.0/16 drop\n") {
				t.Errorf("exit code %d:\n%s", code, out)
			}
		})
	}
}

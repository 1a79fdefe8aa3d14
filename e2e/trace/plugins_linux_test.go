package trace

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

const secondServiceYAML = `---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: ns}
spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-1, namespace: ns, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
endpoints: [{addresses: [10.244.2.10], nodeName: node2}]
ports: [{port: 8080, name: ""}]
`

// With rules of network plugins, trace --kernel reports the same results as real packets have.
func TestTraceKernelFollowsNetworkPlugins(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct{ plane, plugin, tool string }{
		{"nftables", "felix", "nft"},
		{"nftables", "felix", "iptables-nft-restore"},
		{"nftables", "felix", "iptables-legacy-restore"},
		{"nftables", "kube-router", "iptables-nft-restore"},
		{"nftables", "kube-router", "iptables-legacy-restore"},
		{"iptables-nft", "felix", "nft"},
		{"iptables-nft", "felix", "iptables-nft-restore"},
		{"iptables-nft", "kube-router", "iptables-nft-restore"},
		{"iptables-legacy", "felix", "iptables-legacy-restore"},
		{"iptables-legacy", "kube-router", "iptables-legacy-restore"},
	} {
		t.Run(tt.plane+" "+tt.plugin+" "+tt.tool, func(t *testing.T) {
			if i%4 > 0 {
				applytest.Long(t)
			}
			t.Parallel()
			w, topo := inTopology(t, tt.plane)
			w.Write("cluster.yaml", nodetest.NodePort+secondServiceYAML+"---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n")
			w.Must("proxyc apply " + strings.Join(w.Args, " "))
			rules := "../../testdata/apply/plugins/" + tt.plugin
			if tt.tool == "nft" {
				w.Must("nft -f " + rules + ".nft")
			} else {
				w.Must("ipset restore <"+rules+".ipset", tt.tool+" --noflush <"+rules+".iptables")
			}
			hosts := []struct{ trace, host string }{
				{"10.244.1.11", "pod1b"}, {"10.244.1.12", "pod1c"}, {"192.0.2.200", "ext"}, {"192.0.2.201", "ext.201"}, {"192.0.2.202", "ext.202"}, {"node", "node1"},
			}
			services := []string{"10.96.0.10:80", "10.96.0.20:80"}
			tried := map[string]chan error{} // those that are dropped take a while
			for _, from := range hosts {
				for _, to := range services {
					ended := make(chan error, 1)
					tried[from.host+" "+to] = ended
					go func() {
						_, err := topo.Try(from.host, "tcp", 0, netip.MustParseAddrPort(to), applytest.ScaledTimeout(6*time.Second))
						ended <- err
					}()
				}
			}
			passed, stopped := 0, 0
			for _, from := range hosts {
				for _, to := range services {
					out, code := w.Proxyc("trace", "--kernel", "--from", from.trace, "--to", to)
					err := <-tried[from.host+" "+to]
					passes := strings.Contains(out, "  => 10.244.")
					stops := strings.Contains(out, "  => dropped\n") || strings.Contains(out, "  => rejected\n")
					switch {
					case strings.Contains(out, "unsupported") || strings.Contains(out, "not checked") || passes == stops:
						t.Errorf("%s to %s: the rules are not followed:\n%s", from.host, to, out)
					case passes != (err == nil), passes != (code == nodetest.ExitDone):
						t.Errorf("%s to %s: exit %d, and in truth %v:\n%s", from.host, to, code, err, out)
					case passes:
						passed++
					default:
						stopped++
					}
				}
			}
			if passed == 0 || stopped == 0 {
				t.Errorf("%d packets pass and %d are stopped: the rules decide nothing", passed, stopped)
			}
		})
	}
}

// A rule that is not understood is named, and no fate is reported beyond it.
func TestTraceKernelReportsNoFateBeyondUnknownRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ plane, does, want string }{
		{"iptables-nft", "iptables-nft -I FORWARD -p tcp -m string --algo bm --string x -j ACCEPT; iptables-nft -A FORWARD -j DROP", "table filter, chain FORWARD, rule 1: match string is not understood"},
		{"iptables-nft", "iptables-nft -t raw -I PREROUTING -m time --datestart 2000-01-01 -j DROP", "table raw, chain PREROUTING, rule 1: match time is not understood"},
		{"iptables-legacy", "iptables-legacy -I FORWARD -m set --match-set gone src -j DROP 2>/dev/null || iptables-legacy -I FORWARD -m length --length 40 -j DROP", "table filter, chain FORWARD, rule 1: match length is not understood"},
		{"iptables-legacy", "iptables-legacy -t mangle -I FORWARD -p tcp -j NFQUEUE --queue-num 1", "table mangle, chain FORWARD, rule 1: target NFQUEUE is not understood"},
		{"nftables", "iptables-nft -I FORWARD -p tcp -m string --algo bm --string x -j ACCEPT", "table ip filter, chain FORWARD, rule 1: match string is not understood"},
		{"nftables", "iptables-legacy -I FORWARD -m limit --limit 1/min -j DROP", "table legacy iptables filter, chain FORWARD, rule 1: match limit is not understood"},
		{"nftables", "nft 'table ip fw { chain f { type filter hook forward priority 0; ip dscp 3 drop; }; }'", "table ip fw, chain f, rule 1: "},
		{"nftables", "iptables-nft -I FORWARD -p udp -m string --algo bm --string x -j DROP; iptables-nft -I FORWARD -m limit --limit 1/min -j LOG", ""},
	} {
		t.Run(tt.plane+" "+tt.does, func(t *testing.T) {
			w := nodetest.Applied(t, tt.plane)
			w.Must(tt.does)
			out, code := w.Proxyc("trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80")
			if tt.want == "" {
				if code != nodetest.ExitDone || !strings.Contains(out, "=> 10.244.1.97:8080\n") {
					t.Errorf("exit %d, want 0: the rules do nothing to the packet:\n%s", code, out)
				}
				return
			}
			if code != nodetest.ExitFindings || !strings.Contains(out, "  => not known\n") || !strings.Contains(out, "unsupported: "+tt.want) {
				t.Errorf("exit %d, want 1, no fate, and %q in:\n%s", code, tt.want, out)
			}
			out, _ = w.Proxyc("trace", "--kernel", "-o", "json", "--from", "10.244.1.5@cni0", "--to", "ns/a:80")
			if !strings.Contains(out, `"result": "not known"`) {
				t.Errorf("as JSON:\n%s", out)
			}
		})
	}
}

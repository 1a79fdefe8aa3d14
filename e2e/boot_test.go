package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// TestBootThroughService restarts a node whose only way to the API server is Service
// default/kubernetes, as in pods. Without rules nothing replies at that address, and without the
// API server there is nothing to compile. The rules of the boot file lead to it.
func TestBootThroughService(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"nftables", "iptables-nft"} {
		t.Run(plane, func(t *testing.T) {
			if plane != "iptables-nft" {
				applytest.Long(t)
			}
			parallel(t)
			s := newTestEnv(t, plane)
			behind, err := s.cluster.GateAt(s.topo.Namespace("node2"), "192.0.2.12:6443")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { behind.Close() })
			// Packets to the address of a Service without rules are rejected immediately.
			outside := s.topo.Namespace("ext")
			if out, err := outside.Run(outside.Command(t.Context(), "sh", "-ec", "echo 1 >/proc/sys/net/ipv4/ip_forward; ip route add unreachable 10.96.0.1/32")); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			steady := numbered{n: 0, pods: []string{"pod1a", "pod2a"}}
			s.set(append(some(1, 5, "pod1a"), steady)...)
			s.send(kube.Object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
				"metadata": kube.Object{"name": "kubernetes", "namespace": "default",
					"labels": kube.Object{"kubernetes.io/service-name": "kubernetes"}},
				"endpoints": []any{kube.Object{"addresses": []any{"192.0.2.12"}, "conditions": kube.Object{"ready": true}}},
				"ports":     []any{kube.Object{"name": "https", "port": 6443, "protocol": "TCP"}}})
			machine := s.container(t, proxyc, kube.ProxycUser)
			boot := filepath.Join(bootDir, "boot.json")
			start := func(server, boot string) {
				t.Helper()
				host, port, err := net.SplitHostPort(server)
				if err != nil {
					t.Fatal(err)
				}
				machine.Env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
				s.proxy = s.runAs(t, "proxyc", machine, slices.Concat([]string{peerPath, "--boot-from", boot, "--hostname-override", "node1"}, s.args)...)
			}
			stop := func() {
				t.Helper()
				if _, err := s.proxy.Stop(); err != nil {
					t.Fatalf("%v\n%s", err, s.proxy.Tail())
				}
			}
			start(s.gate.Addr(), boot) // as with kube-proxy's rules
			s.converges(20*time.Second, "first start")
			stop()
			s.gate.Shut() // only the Service is left

			s.empty()
			start("10.96.0.1:443", filepath.Join(bootDir, "none.json"))
			eventually(t, catchUp, "without a boot file the API server is missed", func() error {
				st, err := s.status()
				if err == nil && st.APIServer.Lost.IsZero() {
					err = fmt.Errorf("it is not:\n%s", s.proxy.Tail())
				}
				return err
			})
			stop()
			if n := behind.Connections.Load(); n != 0 {
				t.Fatalf("%d connections to the API server, which no rule leads to", n)
			}

			s.set(some(5, 10, "pod2c")...)
			s.unset(some(1, 3)...)
			start("10.96.0.1:443", boot)
			s.converges(catchUp, "what changed while the node was down")
			_, end := s.load(steady)
			s.set(some(10, 12, "pod2c")...)
			t.Logf("a change arrived after %s", s.converges(10*time.Second, "a change"))
			stop()
			start("10.96.0.1:443", boot)
			s.converges(catchUp, "a restart with the rules in place")
			end()
			if behind.Connections.Load() == 0 {
				t.Error("nothing came by way of the Service")
			}
		})
	}
}

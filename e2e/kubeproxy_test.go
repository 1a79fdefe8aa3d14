package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// TestWithKubeProxy starts a kube-proxy on the daemon's node, and stops it. While rules of
// kube-proxy exist, the daemon is not ready. Once no process maintains them, the daemon removes
// them within a minute, and packets follow its own rules.
func TestWithKubeProxy(t *testing.T) {
	t.Parallel()
	peer, err := kube.Tool(t.Context(), kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		plane, mode string
		end         os.Signal
	}{
		{"nftables", "nftables", syscall.SIGKILL},
		{"iptables-nft", "iptables", syscall.SIGTERM},
	} {
		t.Run(way.plane, func(t *testing.T) {
			if way.end != syscall.SIGTERM {
				applytest.Long(t)
			}
			parallel(t)
			s := newTestEnv(t, way.plane)
			shrinks := numbered{n: 0, pods: []string{"pod1a", "pod2a"}}
			deleted, added := numbered{n: 1, pods: []string{"pod1a"}}, numbered{n: 2, pods: []string{"pod1a"}}
			s.set(shrinks, deleted)
			s.start()
			other := s.startKubeProxy(peer, way.mode)
			eventually(t, 20*time.Second, "not ready while kube-proxy runs", func() error { return s.checkKubeProxyRules(true) })
			s.set(added)
			eventually(t, 20*time.Second, "kube-proxy follows", func() error {
				if out := s.kubeProxyRules(); !strings.Contains(out, added.addr().String()) {
					return fmt.Errorf("%s is not in its rules:\n%s\n%s", added.addr(), out, other.Tail())
				}
				return s.checkKubeProxyRules(true)
			})

			if err := other.Signal(way.end); err != nil {
				t.Fatal(err)
			}
			other.Stop() // only waits
			if s.kubeProxyRules() == "" {
				t.Fatal("kube-proxy left no rules: nothing is shown")
			}
			shrinks.pods = shrinks.pods[:1]
			s.set(shrinks)
			s.unset(deleted)
			t.Logf("well after %s", eventually(t, time.Minute, "kube-proxy's rules are removed", func() error { return s.checkKubeProxyRules(false) }))
			for range 10 { // a removed endpoint would get half of the connections
				a, err := s.topo.Try("pod1b", "tcp", 0, shrinks.vip(), applytest.ReplyTimeout)
				if got := s.topo.Name(a.Server.Addr()); err != nil || got != "pod1a" {
					t.Errorf("%s: answered by %q, %v, want pod1a", shrinks.vip(), got, err)
				}
			}
			if a, err := s.topo.Try("pod1b", "tcp", 0, deleted.vip(), time.Second); err == nil {
				t.Errorf("%s: a deleted Service is answered by %s", deleted.vip(), a)
			}
			s.converges(10*time.Second, "after kube-proxy's end")
		})
	}
}

// startKubeProxy starts a kube-proxy on the node with ports of its own.
func (s *testEnv) startKubeProxy(binary, mode string) *kube.Proxy {
	s.t.Helper()
	kubeconfig, err := s.gate.Kubeconfig(s.dir, kube.KubeProxyUser)
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := kube.StartProxy(s.Namespace, s.dir, "kube-proxy", binary, "--kubeconfig", kubeconfig, "--hostname-override", "node1",
		"--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16", "--conntrack-max-per-core", "0", "--conntrack-min", "0",
		"--healthz-bind-address", "127.0.0.1:10276", "--metrics-bind-address", "127.0.0.1:10279")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Kill() })
	return p
}

// kubeProxyRules lists kube-proxy's table or, if it shares tables with the daemon, all rules of
// nf_tables. It returns "" if nothing exists that only kube-proxy creates.
func (s *testEnv) kubeProxyRules() string {
	s.t.Helper()
	out, err := s.Run(s.Command(s.t.Context(), "nft", "list", "ruleset"))
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	all := string(out)
	if _, table, ok := strings.Cut(all, "table ip kube-proxy {"); ok {
		table, _, _ = strings.Cut(table, "\n}")
		return table
	}
	if strings.Contains(all, "KUBE-PROXY-CANARY") {
		return all
	}
	return ""
}

// checkKubeProxyRules returns an error unless rules of kube-proxy exist as wanted, and readiness
// and status agree with that. It fails the test if the daemon was ready before the rules of a
// stopped kube-proxy were removed.
func (s *testEnv) checkKubeProxyRules(want bool) error {
	s.t.Helper()
	code, body, err := s.proxy.Get(s.t.Context(), "http://127.0.0.1:10256/readyz")
	if err != nil {
		return err
	}
	there := s.kubeProxyRules() != ""
	if !want && there && code == 200 {
		s.t.Fatal("the daemon is ready, and rules of kube-proxy are there")
	}
	_, exit := s.node.status(s.t)
	if there != want || (code == 200) == want || (exit == 0) == want || want && !strings.Contains(body, "kube-proxy") {
		return fmt.Errorf("kube-proxy's rules are there: %t; /readyz: %d %s; status exits %d\n%s", there, code, body, exit, s.proxy.Tail())
	}
	return nil
}

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// TestDraining checks that a UDP client keeps a terminating endpoint as long as it serves, with
// proxyc as with kube-proxy.
func TestDraining(t *testing.T) {
	t.Parallel()
	peer, err := kube.Tool(t.Context(), kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	for plane := range planes {
		t.Run("proxyc "+plane, func(t *testing.T) {
			if plane != "iptables-legacy" {
				applytest.Long(t)
			}
			parallel(t)
			s := newTestEnv(t, plane)
			s.start("--iptables-min-sync-period", "20ms") // in every mode
			s.drain()
		})
	}
	t.Run("kube-proxy", func(t *testing.T) {
		applytest.Long(t) // it checks the steps themselves
		parallel(t)
		s := newTestEnv(t, "nftables")
		kubeconfig, err := s.gate.Kubeconfig(s.dir, kube.KubeProxyUser)
		if err != nil {
			t.Fatal(err)
		}
		s.launch(peer, "--kubeconfig", kubeconfig, "--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16", "--hostname-override", "node1",
			"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s")
		s.drain()
	})
}

// drain removes a Service's endpoint in the same steps as an ending pod.
func (s *testEnv) drain() {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Log("log of the proxy:\n" + s.proxy.Tail())
		}
	}()
	n, round := numbered{n: 7, udp: true}, 8
	// set returns when a Service that was created later replies. Then the proxy has applied
	// everything before it.
	set := func(what string) {
		s.t.Helper()
		s.set(n)
		eventually(s.t, 10*time.Second, what, func() error { return s.queryPod(s.client(n), n.pods[0], time.Second) })
		later := numbered{n: round, pods: []string{"pod1a"}}
		round++
		s.set(later)
		eventually(s.t, 10*time.Second, what+": the next sync", func() error {
			_, err := s.topo.Try("ext", "tcp", 0, later.vip(), time.Second)
			return err
		})
	}
	n.pods = []string{"pod1a"}
	set("start")
	old := s.client(n)
	if err := s.queryPod(old, "pod1a", applytest.ReplyTimeout); err != nil {
		s.t.Fatal(err)
	}
	n.pods, n.draining = []string{"pod2a"}, []string{"pod1a"}
	set("terminating and serving")
	if err := s.queryPod(old, "pod1a", applytest.ReplyTimeout); err != nil {
		s.t.Errorf("terminating and serving: %v", err)
	}
	n.draining, n.dead = nil, []string{"pod1a"}
	set("terminating")
	// The daemon deletes flows after the rules of a sync are in force.
	eventually(s.t, 10*time.Second, "terminating", func() error { return s.queryPod(old, "pod2a", time.Second) })
}

// client returns a UDP client of a Service that keeps its port.
func (s *testEnv) client(n numbered) net.Conn {
	s.t.Helper()
	conn, err := s.topo.Namespace("ext").Dial(s.t.Context(), "udp", netip.AddrPort{}, netip.AddrPortFrom(n.addr(), 53))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// queryPod sends a query over a connection, and expects the reply of a pod.
func (s *testEnv) queryPod(conn net.Conn, pod string, timeout time.Duration) error {
	a, err := applytest.Query(conn, timeout)
	if got := s.topo.Name(a.Server.Addr()); err == nil && got != pod {
		return fmt.Errorf("%s answers, want %s", got, pod)
	}
	return err
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// TestConntrackFull makes the node track as many connections as it may, so that new ones fail.
// The daemon still applies changes, and UDP clients leave removed endpoints.
func TestConntrackFull(t *testing.T) {
	applytest.Long(t)
	parallel(t)
	s := newTestEnv(t, "nftables")
	n := numbered{n: 7, pods: []string{"pod1a"}, udp: true}
	s.set(n)
	s.start()
	s.converges(10*time.Second, "start")
	client := s.client(n)
	// The kernel keeps flows that it lists as assured.
	applytest.Until(t, 0, "the flow is assured", func() bool {
		if err := s.queryPod(client, "pod1a", applytest.ReplyTimeout); err != nil {
			t.Fatal(err)
		}
		flows, err := s.Run(s.Command(t.Context(), "conntrack", "-L", "-p", "udp", "-d", n.vip().Addr().String()))
		return err == nil && strings.Contains(string(flows), "[ASSURED]")
	})
	s.fillConntrack()
	if _, err := s.topo.Try("ext", "tcp", 0, n.vip(), time.Second); err == nil {
		t.Fatal("a new connection succeeds: the table is not full")
	}
	if err := s.queryPod(client, "pod1a", applytest.ReplyTimeout); err != nil {
		t.Fatalf("the existing flow: %v", err)
	}
	n.pods = []string{"pod2a"}
	s.set(n)
	s.converges(20*time.Second, "a change while the table is full") // each check reads the table
	eventually(t, 20*time.Second, "the client moves", func() error { return s.queryPod(client, "pod2a", time.Second) })

	if _, err := s.Run(s.Command(t.Context(), "conntrack", "-F")); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the daemon is ready again", func() error { return s.proxy.Ready(t.Context()) })
	if _, err := s.topo.Try("ext", "tcp", 0, n.vip(), applytest.ReplyTimeout); err != nil {
		t.Error(err)
	}
}

// fillConntrack makes the node track as many connections as the kernel allows in a namespace.
// None of them is real.
func (s *testEnv) fillConntrack() {
	s.t.Helper()
	const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
	data, err := os.ReadFile(limit)
	if err != nil {
		s.t.Fatal(err)
	}
	var most int
	if _, err := fmt.Sscan(string(data), &most); err != nil {
		s.t.Fatalf("%s: %v", limit, err)
	}
	var flows strings.Builder
	for i := range most {
		fmt.Fprintf(&flows, "-A -t 3600 -u SEEN_REPLY,ASSURED -s 198.19.%d.1 -d 198.19.255.1 -p tcp --sport %d --dport 80 --state ESTABLISHED\n",
			i/50000, 1+i%50000)
	}
	file := filepath.Join(s.dir, "flows")
	if err := os.WriteFile(file, []byte(flows.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	// Other flows exist already, so the last ones are refused.
	if out, err := s.Run(s.Command(ctx, "conntrack", "-R", file)); err == nil || !strings.Contains(err.Error(), "not enough memory") {
		s.t.Fatalf("conntrack takes %d flows: %v\n%s", most, err, out)
	}
}

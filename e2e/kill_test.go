package e2e

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// TestDaemonKilled kills the daemon at random times while Services change: right after its start,
// in the middle of a commit, when idle. Each time the next daemon brings the kernel to the wanted
// state, and connections continue meanwhile.
func TestDaemonKilled(t *testing.T) {
	t.Parallel()
	const seed = 11
	for plane, kills := range map[string]int{"nftables": applytest.Of(12, 100), "iptables-nft": 12, "iptables-legacy": applytest.Of(1, 12)} {
		t.Run(plane, func(t *testing.T) {
			if plane == "iptables-nft" {
				applytest.Long(t)
			}
			parallel(t)
			r := rand.New(rand.NewPCG(seed, 1))
			s := newTestEnv(t, plane)
			s.args = append(s.args, "--iptables-min-sync-period", "20ms") // in every mode
			steady := some(0, 4, "pod1a", "pod2a")
			s.set(steady...)
			c := newChurn(s, seed, 4, 60)
			s.start()
			s.converges(10*time.Second, "start")
			_, endLoad := s.load(steady[:2]...)
			endConnections := s.keepConnections(append(steady[2:], c.answering()...)...)
			ctx, stop := context.WithCancel(t.Context())
			churned := make(chan struct{})
			go func() { defer close(churned); c.run(ctx, 20*time.Millisecond) }()
			defer func() { stop(); <-churned }()

			young, slowest := 0, time.Duration(0)
			for range kills {
				time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
				s.kill()
				s.launch(proxyc, s.command(t, s.args...)...)
				if r.IntN(3) == 0 {
					young++ // the next one is killed before it is ready
					continue
				}
				resume := c.pause()
				slowest = max(slowest, s.converges(10*time.Second, "after a kill"))
				resume()
			}
			stop()
			<-churned
			s.converges(10*time.Second, "after the last kill")
			t.Logf("seed %d: %d kills, %d of them soon after the start; %d changes; slowest %s", seed, kills, young, c.changes, slowest)
			endConnections()
			endLoad()
		})
	}
}

// answering returns the Services that have ready endpoints.
func (c *churn) answering() (services []numbered) {
	for i, n := range c.services {
		if len(n.pods) > 0 && !c.absent[i] {
			services = append(services, n)
		}
	}
	return services
}

// keepConnections keeps a connection to each Service open until the returned function ends it.
// All lead to live endpoints, so none may break, whatever happens to the Service.
func (s *testEnv) keepConnections(services ...numbered) (end func()) {
	s.t.Helper()
	var probes []applytest.Probe
	for _, n := range services {
		probes = append(probes, probe("ext", n))
	}
	open, err := s.topo.StartConnections(50*time.Millisecond, probes...)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		s.t.Helper()
		asked, broken := open.Stop()
		s.t.Logf("%d connections with %d queries", len(probes), asked)
		for _, f := range broken {
			s.t.Error(f)
		}
	}
}

// kill kills the daemon with SIGKILL.
func (s *testEnv) kill() {
	s.t.Helper()
	if err := s.proxy.Signal(syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	s.proxy.Stop() // only waits: it is dead
}

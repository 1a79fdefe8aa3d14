package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir"
)

var (
	soakFlag      = flag.Duration("soak", 0, "how long TestSoak lasts")
	soakPlaneFlag = flag.String("soak-plane", "nftables", "nftables, iptables-nft or iptables-legacy")
)

// A sample is what the daemon uses at one time.
type sample struct{ memory, goroutines float64 }

// TestSoak changes all but 30 of 1,000 Services at random, 25 times a second. No query to the 30
// fails, and the daemon does not grow. At the end the state of the kernel and of the daemon is
// that after a fresh start.
func TestSoak(t *testing.T) {
	if *soakFlag == 0 {
		t.Skip("runs with -soak")
	}
	const seed, services, steady = 1, 1000, 30
	s := newTestEnv(t, *soakPlaneFlag)
	untouched := some(0, steady, "pod1a", "pod2a", "pod2c")
	s.set(untouched...)
	c := newChurn(s, seed, steady, services)
	s.start()
	s.converges(time.Minute, "start")
	_, endLoad := s.load(untouched[:3]...)
	endConnections := s.keepConnections(untouched[3:]...)
	ctx, stop := context.WithTimeout(t.Context(), *soakFlag)
	defer stop()
	churned := make(chan struct{})
	go func() { defer close(churned); c.run(ctx, 40*time.Millisecond) }()

	var samples []sample
	for tick := time.NewTicker(time.Second); ctx.Err() == nil; <-tick.C {
		samples = append(samples, sample{s.metric("process_resident_memory_bytes"), s.metric("go_goroutines")})
	}
	<-churned
	took := s.converges(10*time.Second, "the last changes")
	endConnections()
	endLoad()
	t.Logf("seed %d: %d changes within %s; the kernel has the last one after %s", seed, c.changes, *soakFlag, took)
	t.Logf("%v syncs, %v operations, %v s of CPU, %v drift", s.metric("kubeproxy_sync_proxy_rules_duration_seconds_count")/2,
		s.metric("proxyc_operations_total"), s.metric("process_cpu_seconds_total"), s.metric("proxyc_drift_repaired_total"))
	if n := s.metric("proxyc_drift_repaired_total"); n != 0 {
		t.Errorf("%v operations of the daemon itself were attributed to another program", n)
	}
	s.checkGrowth(samples)
	s.checkCompiled()
}

// checkGrowth compares the last fifth of the samples with the second; during the first the daemon
// warms up. The heap grows by half before a collection, and memory is returned late, so the
// median of a fifth varies by some percent. A leak in one of a hundred changes would exceed that.
// Requests to the metrics server and to the API add goroutines.
func (s *testEnv) checkGrowth(samples []sample) {
	s.t.Helper()
	fifth := len(samples) / 5
	early, late := samples[fifth:2*fifth], samples[4*fifth:]
	median := func(samples []sample, of func(sample) float64) float64 {
		var values []float64
		for _, v := range samples {
			values = append(values, of(v))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	memory, goroutines := func(v sample) float64 { return v.memory }, func(v sample) float64 { return v.goroutines }
	before, after := median(early, memory)/(1<<20), median(late, memory)/(1<<20)
	s.t.Logf("%d samples: memory %.1f MiB, then %.1f; goroutines %v, then %v", len(samples), before, after, median(early, goroutines), median(late, goroutines))
	if after > 1.1*before+2 {
		s.t.Errorf("memory grows: %.1f MiB, then %.1f", before, after)
	}
	if median(late, goroutines) > median(early, goroutines)+2 {
		s.t.Errorf("goroutines grow")
	}
}

// checkCompiled compares what the daemon has in force with a compilation of the API's objects,
// except for the node's interfaces, which compile does not read.
func (s *testEnv) checkCompiled() {
	s.t.Helper()
	compiled, err := s.check("compile", "-o", "ir-json")
	if err != nil {
		s.t.Fatal(err)
	}
	_, inForce, err := s.proxy.Get(s.t.Context(), "http://127.0.0.1:10249/debug/proxyc/ir")
	if err != nil {
		s.t.Fatal(err)
	}
	want, got := s.programs(compiled), s.programs(inForce)
	for f, w := range want.All() {
		g := got.Of(f)
		if g == nil {
			s.t.Fatalf("no Program of %s is in force", f)
		}
		g.Node.Addrs = w.Node.Addrs
		if !bytes.Equal(text(s.t, w), text(s.t, g)) {
			s.t.Errorf("%s: what is in force is not what a fresh compilation gives: %d Services, want %d", f, len(g.Services), len(w.Services))
		}
	}
	s.t.Logf("%d Services of IPv4 are as freshly compiled", len(got.IPv4.Services))
}

func (s *testEnv) programs(text string) ir.Programs {
	s.t.Helper()
	programs, err := ir.ReadJSON(bytes.NewReader([]byte(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	return programs
}

func text(t *testing.T, p *ir.Program) []byte {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

package applytest

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestLoad checks that replacing rules in one transaction loses nothing. A temporary removal of the
// rules is detected at its time, by every probe that requires them.
func TestLoad(t *testing.T) {
	t.Parallel()
	topo := TopologyFor(t)
	node := topo.Namespace("node1")
	nft := func(script string) {
		t.Helper()
		cmd := node.Command(context.Background(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if _, err := node.Run(cmd); err != nil {
			t.Fatal(err)
		}
	}
	rules := strings.NewReplacer("ENDPOINT0", "10.244.1.10", "ENDPOINT1", "10.244.2.10").Replace(nftRules)
	nft(rules)
	vip := netip.MustParseAddrPort("10.96.0.10:80")
	tcp, udp, sctp := Probe{"pod1b", "tcp", vip}, Probe{"node1", "udp", vip}, Probe{"ext.201", "sctp", vip}
	direct := Probe{"ext", "tcp", netip.MustParseAddrPort("192.0.2.11:80")}
	load := topo.StartLoad(100, tcp, udp, sctp, direct)
	for range 20 {
		nft(rules)
	}
	load.WaitTries(16) // so that one endpoint alone answers all of them once in 30,000 runs
	gap := time.Now()
	nft("delete table ip byhand")
	load.WaitTries(0)                                  // a busy machine pauses longer than any timeout
	waitUntil(t, time.Now().Add(200*time.Millisecond)) // then a packet is retransmitted
	nft(rules)
	restored := time.Now()
	waitUntil(t, restored.Add(200*time.Millisecond))
	report := load.Stop()

	missed := map[Probe]int{}
	for _, f := range report.Late {
		if f.Why == resentWhy {
			missed[f.Probe]++
		}
	}
	for _, f := range report.Failures {
		missed[f.Probe]++
		if f.Probe == direct {
			t.Errorf("%s: it needs no rules", f)
		}
		// A try may start before the gap, but not by more than its timeout.
		if f.At.Before(gap.Add(-load.timeout)) || f.At.After(restored) {
			t.Errorf("%s: outside of the gap %s to %s", f, gap.Format("15:04:05.000"), restored.Format("15:04:05.000"))
		}
	}
	for _, p := range []Probe{tcp, udp, sctp} {
		if missed[p] == 0 {
			t.Errorf("%s: %d failures of %d tries in the gap", p, missed[p], report.Tries[p])
		}
		if report.Answers[p]["pod1a"] == 0 || report.Answers[p]["pod2a"] == 0 {
			t.Errorf("%s: answers %v, want both endpoints", p, report.Answers[p])
		}
	}
}

// TestGaps checks that a loss at the same time as one of a control is not attributed to rules, but
// that a rejection is.
func TestGaps(t *testing.T) {
	t.Parallel()
	vip, direct := Probe{From: "ext"}, Probe{From: "node1"}
	at := func(p Probe, from, to int, why string) LoadFailure {
		return LoadFailure{Probe: p, At: time.UnixMilli(int64(from)), End: time.UnixMilli(int64(to)), Why: why}
	}
	for _, c := range []struct {
		name           string
		failures, late []LoadFailure
		gaps, slow     int
	}{
		{"nothing", nil, nil, 0, 0},
		{"lost alone", []LoadFailure{at(vip, 10, 20, TimedOut)}, nil, 1, 0},
		{"late alone", nil, []LoadFailure{at(vip, 10, 20, resentWhy)}, 1, 0},
		{"lost at the time of a late control", []LoadFailure{at(vip, 10, 20, TimedOut)}, []LoadFailure{at(direct, 19, 30, resentWhy)}, 0, 1},
		{"late at the time of a lost control", []LoadFailure{at(direct, 1, 10, TimedOut)}, []LoadFailure{at(vip, 10, 20, resentWhy)}, 0, 1},
		{"lost after a control", []LoadFailure{at(direct, 1, 9, TimedOut), at(vip, 10, 20, TimedOut)}, nil, 1, 0},
		{"refused at the time of a control", []LoadFailure{at(direct, 1, 30, TimedOut), at(vip, 10, 20, Refused)}, nil, 1, 0},
		{"sent again at the time of a slow control", nil, []LoadFailure{at(direct, 1, 300, slowWhy), at(vip, 10, 20, resentWhy)}, 0, 1},
		{"slow alone", nil, []LoadFailure{at(vip, 10, 300, slowWhy)}, 0, 0},
		{"a control alone", []LoadFailure{at(direct, 1, 30, TimedOut)}, nil, 0, 0},
	} {
		r := LoadReport{Failures: c.failures, Late: c.late}
		if gaps, slow := r.Gaps([]Probe{direct}); len(gaps) != c.gaps || len(slow) != c.slow {
			t.Errorf("%s: gaps %v, slow %v; want %d and %d", c.name, gaps, slow, c.gaps, c.slow)
		}
	}
}

func waitUntil(t *testing.T, at time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(at)):
	case <-t.Context().Done():
	}
}

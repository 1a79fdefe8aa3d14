package applytest

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestLoad: rules that are replaced in one transaction lose nobody; rules that are away for a while are
// missed, at that time and by every probe that needs them.
func TestLoad(t *testing.T) {
	topo := newTopology(t)
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
	gap := time.Now()
	nft("delete table ip byhand")
	waitUntil(t, gap.Add(200*time.Millisecond))
	nft(rules)
	mended := time.Now()
	waitUntil(t, mended.Add(200*time.Millisecond))
	report := load.Stop()

	missed := map[Probe]int{}
	for _, f := range report.Failures {
		missed[f.Probe]++
		// A try may begin before the gap and be caught in it, but not for longer than it takes.
		if f.At.Before(gap.Add(-load.timeout)) || f.At.After(mended) {
			t.Errorf("%s: outside of the gap %s to %s", f, gap.Format("15:04:05.000"), mended.Format("15:04:05.000"))
		}
	}
	for _, p := range []Probe{tcp, udp, sctp} {
		if missed[p] < 5 {
			t.Errorf("%s: %d failures of %d tries in a gap of 200 ms at 100 a second", p, missed[p], report.Tries[p])
		}
		if report.Answers[p]["pod1a"] == 0 || report.Answers[p]["pod2a"] == 0 {
			t.Errorf("%s: answers %v, want both endpoints", p, report.Answers[p])
		}
	}
	if missed[direct] > 0 || report.Answers[direct]["node1"] != report.Tries[direct] {
		t.Errorf("%s needs no rules: %d failures, answers %v of %d", direct, missed[direct], report.Answers[direct], report.Tries[direct])
	}
}

func waitUntil(t *testing.T, at time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(at)):
	case <-t.Context().Done():
	}
}

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/watch"
)

// What kube-proxy left is removed; where it comes back soon it runs, and is named
// until it has gone.
func TestPeer(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var there []string
	var told *KubeProxy
	removed, events := 0, 0
	var busy error
	p := &peer{
		look: func() ([]string, error) { return there, nil },
		remove: func(context.Context) error {
			if removed++; busy == nil {
				there = nil
			}
			return busy
		},
		now: func() time.Time { return now }, log: slog.New(slog.DiscardHandler),
		tell: func(k *KubeProxy) { told = k },
		send: func(watch.Event) { events++ },
	}
	table := []string{"table ip kube-proxy"}
	step := func(what string, after time.Duration, comes bool, wantRemoved, wantEvents int, want *KubeProxy) {
		t.Helper()
		now = now.Add(after)
		if comes {
			there = table
		}
		p.step(t.Context())
		if removed != wantRemoved || events != wantEvents {
			t.Errorf("%s: removed %d times, %d events, want %d and %d", what, removed, events, wantRemoved, wantEvents)
		}
		if d := cmp.Diff(want, told); d != "" {
			t.Errorf("%s: status (-want +got):\n%s", what, d)
		}
	}
	step("nothing", 0, false, 0, 0, nil)
	first := &KubeProxy{Since: now, Objects: table}
	step("it comes", 0, true, 1, 1, first)
	step("it is gone", time.Second, false, 1, 1, first)
	step("long after", peerAgain, true, 2, 2, &KubeProxy{Since: now.Add(peerAgain), Objects: table})
	again := &KubeProxy{Since: now.Add(30 * time.Second), Objects: table, Stays: true}
	step("soon after", 30*time.Second, true, 2, 3, again)
	step("it stays", time.Hour, true, 2, 3, again)
	there = nil
	step("it was stopped", time.Second, false, 2, 3, nil)
	busy = errors.New("busy")
	last := &KubeProxy{Since: now.Add(peerAgain), Objects: table}
	step("it comes when nothing can be removed", peerAgain, true, 3, 4, last)
	step("it is there still, and did not come back", 2*time.Second, false, 3, 4, last)
	there, busy = nil, nil // the removal was tried again
	step("it is gone at last", time.Minute, false, 3, 4, last)
	step("and comes back", peerAgain-time.Second, true, 3, 5, &KubeProxy{Since: now.Add(peerAgain - time.Second), Objects: table, Stays: true})
}

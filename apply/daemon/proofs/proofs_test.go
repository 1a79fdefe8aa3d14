package proofs

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// Only changed Services are proved, each separately. Differences stay in the status until the
// Service or everything changes.
func TestProvedChanges(t *testing.T) {
	p := irtest.Program(ir.ModeNFTables)
	node := *p
	node.Services = nil
	a, b := &p.Services[0], &p.Services[1]
	var asked []ir.Name
	wrong := map[ir.Name]bool{b.Name: true}
	prove := func(_ context.Context, programs ir.Programs) (found []status.Unproved) {
		for _, p := range ir.Present(programs) {
			if len(p.Services) != 1 || p.Node.Mode != ir.ModeNFTables {
				t.Errorf("asked about %d Services in mode %s", len(p.Services), p.Node.Mode)
			}
			asked = append(asked, p.Services[0].Name)
			if wrong[p.Services[0].Name] {
				found = append(found, status.Unproved{Packet: "--from node --to 10.96.0.10:80/tcp", Want: "dropped", Have: "rejected"})
			}
		}
		return found
	}
	proves := New(prove, slog.New(slog.DiscardHandler), func() {})
	status := func() status.Status {
		now := status.Status{Syncs: status.Syncs{Synced: true}}
		proves.Report(&now)
		return now
	}
	change := func(all bool, changes ...ir.Change) {
		w := reconcile.Work{Programs: ir.NewPrograms(&node), All: all}
		*w.Changes.At(p.Family) = changes
		proves.Add(w)
		if now := status(); now.Proving > len(changes) || now.Proving > 0 && now.Healthy() {
			t.Errorf("%d changes: %d to be proved, and all is well", len(changes), now.Proving)
		}
		for proves.step(t.Context()) {
		}
	}
	line := "not proved   Service " + b.Name.String() + ": proxyc trace --from node --to 10.96.0.10:80/tcp: is rejected, must be dropped\n"
	reported := func(when string, want bool) {
		t.Helper()
		now := status()
		var got strings.Builder
		if err := now.Print(&got); err != nil || now.Healthy() == want || strings.Contains(got.String(), line) != want {
			t.Errorf("%s: healthy %t, %v, want %q (%t) in\n%s", when, now.Healthy(), err, line, want, got.String())
		}
	}
	change(false, ir.Change{Name: a.Name, New: a}, ir.Change{Name: b.Name, New: b})
	reported("after a change to what is wrong", true)
	change(false, ir.Change{Name: a.Name, Old: a, New: a})
	reported("after a change of another", true)
	wrong = nil
	change(false, ir.Change{Name: b.Name, Old: b, New: b})
	reported("after a change to what is right", false)
	wrong = map[ir.Name]bool{b.Name: true}
	change(false, ir.Change{Name: b.Name, Old: b, New: b})
	change(false, ir.Change{Name: b.Name, Old: b})
	reported("after it went", false)
	change(false, ir.Change{Name: b.Name, New: b})
	change(true)
	reported("after everything changed", false)
	if want := []ir.Name{a.Name, b.Name, a.Name, b.Name, b.Name, b.Name}; len(asked) != len(want) {
		t.Errorf("asked about %v, want %v", asked, want)
	}
}

// No proof runs while rules change. A stopped proof restarts. Its result is unknown if it takes too
// long, alone or in total.
func TestProofsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := irtest.Program(ir.ModeNFTables)
		big, small := &p.Services[0], &p.Services[1]
		node := *p
		node.Services = nil
		takes := map[ir.Name]time.Duration{big.Name: proofTime * 3 / 4, small.Name: 0}
		running := 0
		prove := func(ctx context.Context, programs ir.Programs) []status.Unproved {
			running++
			defer func() { running-- }()
			select {
			case <-ctx.Done():
				return []status.Unproved{{Want: status.AnyFate, Have: "not known: " + context.Cause(ctx).Error()}}
			case <-time.After(takes[programs.Of(p.Family).Services[0].Name]):
				return nil
			}
		}
		proves := New(prove, slog.New(slog.DiscardHandler), func() {})
		go proves.Run(t.Context())
		change := func(s *ir.Service) {
			proves.Pause()
			w := reconcile.Work{Programs: ir.NewPrograms(&node)}
			*w.Changes.At(p.Family) = []ir.Change{{Name: s.Name, New: s}}
			proves.Add(w)
			proves.Resume()
			synctest.Wait()
		}
		expect := func(when string, left int, unproved ...string) {
			t.Helper()
			synctest.Wait()
			var now status.Status
			proves.Report(&now)
			var have []string
			for _, u := range now.Unproved {
				have = append(have, u.Service+": "+u.Text())
			}
			if now.Proving != left || !slices.Equal(have, unproved) {
				t.Errorf("%s: %d left, want %d; %q, want %q", when, now.Proving, left, have, unproved)
			}
		}
		late := big.Name.String() + ": not known: " + errProofTime.Error()
		change(big)
		expect("a change", 1)
		proves.Pause()
		synctest.Wait()
		if running > 0 {
			t.Error("a proof goes on while rules change")
		}
		time.Sleep(10 * proofTime)
		expect("during a long sync", 1)
		proves.Resume()
		time.Sleep(proofTime)
		expect("after it", 0)

		change(big)
		time.Sleep(proofTime / 2)
		change(small)
		expect("another change in the middle", 2)
		time.Sleep(proofTime)
		expect("when the time of all proofs of it is over", 0, late)
		change(big)
		time.Sleep(proofTime)
		expect("after it changed again", 0)

		takes[big.Name] = 10 * proofTime
		change(big)
		time.Sleep(proofTime)
		expect("what takes too long by itself", 0, late)
		change(big)
		time.Sleep(proofTime / 2)
		proves.Pause()
		w := reconcile.Work{Programs: ir.NewPrograms(&node)}
		*w.Changes.At(p.Family) = []ir.Change{{Name: big.Name, Old: big}}
		proves.Add(w)
		proves.Resume()
		expect("what is gone", 0)
	})
}

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

var errBusy = errors.New("busy")

// Each wait after a failure is twice as long as the one before, up to Retry. A change ends
// the wait, and a success the series.
func TestReconcilerBacksOff(t *testing.T) {
	run(t, func(w *world) {
		w.Schedule.Retry = 5 * time.Second
		w.pass(time.Minute)
		w.dataplane.fails = true
		w.want(svc("a", 1))
		w.pass(13 * time.Second)
		w.want(svc("a", 2))
		w.pass(time.Second)
		w.dataplane.fails = false
		w.pass(time.Minute)
		w.logged("0s full", "1m0s change: busy", "1m1s full: busy", "1m3s full: busy", "1m7s full: busy", "1m12s full: busy",
			"1m13s full: busy", "1m18s full")
		w.log = nil
		w.dataplane.fail = errBusy
		w.want(svc("a", 3))
		w.pass(time.Minute)
		w.logged("2m14s change: busy", "2m15s full")
	})
}

// Without minSyncPeriod there is still a wait after a failure, unless something changes.
func TestReconcilerBacksOffWithoutMin(t *testing.T) {
	run(t, func(w *world) {
		w.Schedule.Min = 0
		w.pass(time.Minute)
		w.dataplane.fails = true
		w.want(svc("a", 1))
		w.pass(500 * time.Millisecond)
		w.want(svc("a", 2))
		w.pass(time.Second)
		w.dataplane.fails = false
		w.pass(time.Minute)
		w.logged("0s full", "1m0s change: busy", "1m0.5s full: busy", "1m2.5s full")
	})
}

// Comparisons that fail are repeated at growing distances, and keep the node unready. Changes
// go on, and do not end these waits.
func TestReconcilerComparisonsBackOff(t *testing.T) {
	run(t, func(w *world) {
		w.pass(time.Minute)
		w.dataplane.readFails = true
		w.drift <- struct{}{}
		for port := range uint16(9) {
			w.pass(time.Second)
			w.want(svc("a", port+1))
		}
		w.pass(900 * time.Millisecond)
		if w.state.NotReady() != "busy" || !w.state.Waiting.Equal(w.began.Add(time.Minute)) {
			t.Errorf("after comparisons that failed: %q since %v", w.state.NotReady(), w.state.Waiting)
		}
		w.dataplane.readFails = false
		w.pass(time.Minute)
		if w.state.NotReady() != "" {
			t.Errorf("after one that did not: %q", w.state.NotReady())
		}
		failed := slices.DeleteFunc(w.log, func(line string) bool { return !strings.HasSuffix(line, "busy") })
		if len(failed) != 4 { // after 0, 1, 3 and 7 s
			t.Errorf("%q, want 4 comparisons that fail in 10 s", failed)
		}
	})
}

// A hourly comparison that fails is no reason for one after the other.
func TestReconcilerHourlyComparisonFails(t *testing.T) {
	run(t, func(w *world) {
		w.pass(59 * time.Minute)
		w.dataplane.readFails = true
		w.pass(time.Minute + 10*time.Second)
		w.dataplane.readFails = false
		w.pass(time.Hour)
		w.logged("0s full", "1h0m0s full: busy", "1h0m1s full: busy", "1h0m3s full: busy", "1h0m7s full: busy", "1h0m15s full")
	})
}

// A change, or a Replace since the Node changed, that fails while a comparison is under way
// is tried again; the comparison, which ends before, changes nothing about that.
func TestReconcilerFailsBesideComparison(t *testing.T) {
	for _, node := range []bool{false, true} {
		var d *concurrent
		runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
			w.want(svc("a", 1), svc("b", 1))
			w.pass(time.Minute)
			d.slow = make(chan struct{})
			w.dataplane.rules[svc("a", 0).Name] = 9
			w.drift <- struct{}{}
			w.pass(time.Minute)
			w.dataplane.fail = errBusy
			w.source.all = node
			w.want(svc("a", 1), svc("b", 2))
			w.pass(100 * time.Millisecond)
			close(d.slow) // the reading ends
			w.pass(100 * time.Millisecond)
			if w.state.NotReady() != "busy" {
				t.Errorf("node %t: after the comparison %q, want what failed", node, w.state.NotReady())
			}
			w.pass(2 * time.Minute)
			kind := map[bool]string{false: "change", true: "full"}[node]
			w.logged("0s full", "1s change", "2m0s "+kind+": busy", "2m1s full")
			if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 2}, named(w.dataplane.rules)); diff != "" || w.state.NotReady() != "" {
				t.Errorf("node %t: %q, in force (-want +got):\n%s", node, w.state.NotReady(), diff)
			}
		})
	}
}

// Failures while a comparison is under way are tried again at growing distances.
func TestReconcilerBacksOffBesideComparison(t *testing.T) {
	var d *concurrent
	runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
		w.pass(time.Minute)
		d.slow = make(chan struct{})
		w.drift <- struct{}{}
		w.pass(time.Minute)
		w.dataplane.fails = true
		w.want(svc("a", 1))
		w.pass(10 * time.Second)
		w.dataplane.fails = false
		w.pass(time.Minute)
		w.logged("0s full", "2m0s change: busy", "2m1s full: busy", "2m3s full: busy", "2m7s full: busy", "2m15s full")
		close(d.slow)
		w.pass(time.Minute)
		if len(w.log) != 6 || w.state.NotReady() != "" {
			t.Errorf("after the comparison %q, want nothing to do: %v", w.state.NotReady(), w.log)
		}
	})
}

// A Service that the kernel refuses later than another is tried again as soon as the first one was.
func TestReconcilerTriesEachRefusedSoon(t *testing.T) {
	run(t, func(w *world) {
		all := []ir.Service{svc("b", 666)}
		for i := range 20 { // two refused ones have no shared cause
			all = append(all, svc(fmt.Sprint("z", i), 1))
		}
		w.want(all...)
		w.pass(70 * time.Minute)
		w.log = nil
		w.want(append(all, svc("c", 666))...)
		w.pass(5 * time.Minute)
		w.logged("1h10m0s change", "1h10m30s full", "1h11m30s full", "1h13m30s full")
	})
}

// Syncs for other reasons do not delay the next attempt.
func TestReconcilerTriesRefusedBesideDrift(t *testing.T) {
	run(t, func(w *world) {
		w.want(svc("a", 1), svc("b", 666))
		w.pass(2 * time.Second)
		for range 4 {
			w.drift <- struct{}{}
			w.pass(5 * time.Second)
		}
		w.log = nil
		w.pass(2 * time.Minute)
		w.logged("31s full", "1m31s full")
	})
}

// A Service that the kernel refused is tried again, at first soon, and then at ever longer intervals.
func TestReconcilerTriesRefusedAgain(t *testing.T) {
	run(t, func(w *world) {
		w.want(svc("a", 1), svc("b", 666))
		w.pass(4 * time.Hour)
		w.logged("0s full", "1s change", "31s full", "1m31s full", "3m31s full", "7m31s full", "15m31s full", "31m31s full", "1h3m31s full", "2h3m31s full", "3h3m31s full")
		if got, want := w.state.NotReady(), "the kernel refuses the rules of 1 Services"; got != want || !w.state.InForce() {
			t.Errorf("%q, want %q", got, want)
		}
		w.dataplane.accepts = true
		w.pass(time.Hour)
		if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 666}, named(w.dataplane.rules)); diff != "" || w.state.NotReady() != "" {
			t.Errorf("an hour later: %q, in force (-want +got):\n%s", w.state.NotReady(), diff)
		}
	})
}

// Progress moves State.Waiting: what is applied or cleared does not wait any more.
func TestStateWaiting(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 1, 1, 0, 0, s, 0, time.UTC) }
	var s State
	check := func(what string, want int) {
		t.Helper()
		if !s.Waiting.Equal(at(want)) {
			t.Errorf("%s: waits since %v, want %v", what, s.Waiting, at(want))
		}
	}
	s.want(at(1))
	s.doubt(at(2))
	check("a change and a doubt", 1)
	s.Known = true
	s.apply(1, at(3))
	check("the doubt", 2)
	s.want(at(4))
	s.doubt(at(5))
	check("the doubt still", 2)
	s.clear(1, at(6))
	check("the change", 4)
	s.apply(2, at(7))
	check("the second doubt, which the reading did not clear", 6)
	s.clear(2, at(8))
	if !s.InForce() || !s.Waiting.IsZero() {
		t.Errorf("all settled: %+v", s)
	}
	s.Refused = []apply.Refusal{{}}
	if !s.InForce() || s.NotReady() == "" {
		t.Error("ready with a refused Service")
	}
}

// hanging is a fake whose commits take a while.
type hanging struct {
	*fake
	takes time.Duration
	mu    sync.Mutex
}

func (h *hanging) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	if !p.Empty() {
		time.Sleep(h.takes)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fake.Commit(ctx, p)
}

// A change that arrives during a commit which lasts until a comparison is due is taken by that
// sync, before its event is seen. It is not in force for that.
func TestChangeTakenBeforeItsEvent(t *testing.T) {
	var h *hanging
	runWith(t, func(w *world) {
		h = &hanging{fake: w.dataplane}
		w.Reconciler.Dataplane = h
	}, func(w *world) {
		w.pass(time.Hour - 2*time.Second) // a comparison is due in 2 s
		h.takes = 3 * time.Second
		w.want(svc("a", 1))
		w.pass(time.Second) // its commit is under way
		h.takes = 5 * time.Minute
		w.want(svc("a", 2))
		w.pass(4 * time.Minute)
		h.mu.Lock()
		port := named(h.rules)["a"]
		h.mu.Unlock()
		if w.state.NotReady() == "" || port != 1 {
			t.Errorf("not ready %q while the kernel has port %d", w.state.NotReady(), port)
		}
		w.pass(10 * time.Minute)
		if port := named(w.dataplane.rules)["a"]; w.state.NotReady() != "" || port != 2 {
			t.Errorf("not ready %q, port %d, in the end", w.state.NotReady(), port)
		}
	})
}

// An object that the kernel does not remove keeps the node unready. Its removal is retried at growing
// distances, other changes are applied, and comparisons do not mistake it for a foreign change.
func TestReconcilerRefusedRemoval(t *testing.T) {
	run(t, func(w *world) {
		w.want(svc("a", 777), svc("b", 1))
		w.pass(time.Minute)
		synced, drift, unready := w.Synced, 0, 0
		w.Synced = func(s *Sync) {
			drift += s.Done.Drift.Total()
			synced(s)
		}
		w.Report = func(st State) {
			if w.state = st; st.NotReady() != "" {
				unready++
			} else if w.dataplane.rules[svc("a", 0).Name] != 0 && st.Applied > 2 {
				t.Error("ready, and clients reach a removed Service")
			}
		}
		w.log = nil
		w.dataplane.sticks = true
		w.want(svc("b", 1))
		w.pass(10 * time.Second)
		w.logged("1m0s change", "1m1s change", "1m3s change", "1m7s change")
		if want := "clients reach 1 removed objects: removal of ns/a of Service ns/a: the kernel refuses it: no"; w.state.NotReady() != want {
			t.Errorf("refused: %q, want %q", w.state.NotReady(), want)
		}
		w.drift <- struct{}{}
		w.pass(2 * time.Hour)
		w.want(svc("b", 2))
		w.pass(time.Second)
		w.drift <- struct{}{}
		w.pass(time.Minute)
		if got := named(w.dataplane.rules)["b"]; got != 2 || drift != 0 || len(w.state.RefusedRemovals) != 1 {
			t.Errorf("another Service has port %d, drift %d, refused %v", got, drift, w.state.RefusedRemovals)
		}
		w.dataplane.sticks = false
		w.pass(31 * time.Second)
		if diff := cmp.Diff(map[string]uint16{"b": 2}, named(w.dataplane.rules)); diff != "" || w.state.NotReady() != "" || drift != 0 {
			t.Errorf("afterwards: %q, drift %d, rules (-want +got):\n%s", w.state.NotReady(), drift, diff)
		}
		w.log = nil
		w.pass(50 * time.Minute)
		w.logged()
	})
}

// The drift of a repair that fails, or that the kernel partly refuses, is reported once, by the sync
// that repeats it.
func TestReconcilerReportsFailedRepair(t *testing.T) {
	for name, breaks := range map[string]func(w *world){
		"fails":                                 func(w *world) { w.dataplane.commitFails = true },
		"fails after a Change beside a reading": func(w *world) { w.slowly().slow = make(chan struct{}) },
		"is refused":                            func(w *world) { w.dataplane.accepts = false },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.dataplane.accepts = true
				w.want(svc("a", 666), svc("b", 1), svc("c", 1))
				w.pass(time.Minute)
				drift, first := 0, []string{}
				synced := w.Synced
				w.Synced = func(s *Sync) {
					if !s.Incomplete && s.Err == nil {
						drift += s.Done.Drift.Total()
						for _, op := range s.Done.DriftFirst {
							first = append(first, op.Object)
						}
					}
					synced(s)
				}
				delete(w.dataplane.rules, svc("a", 0).Name)
				w.dataplane.rules[svc("b", 0).Name] = 9
				breaks(w)
				w.drift <- struct{}{}
				if d, ok := w.Reconciler.Dataplane.(*concurrent); ok {
					w.pass(time.Second)
					w.want(svc("a", 666), svc("b", 1), svc("c", 2))
					w.pass(time.Second)
					w.dataplane.commitFails = true
					close(d.slow)
				}
				w.pass(100 * time.Millisecond)
				w.dataplane.commitFails = false
				w.pass(time.Minute)
				if diff := cmp.Diff([]string{"ns/a", "ns/b"}, first); drift != 2 || diff != "" {
					t.Errorf("drift %d, operations (-want +got):\n%s", drift, diff)
				}
			})
		})
	}
}

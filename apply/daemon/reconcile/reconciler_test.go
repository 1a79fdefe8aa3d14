package reconcile

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// fakeSource hands out what it was last set to.
type fakeSource struct {
	changed chan struct{}
	last    ir.Programs
	now     ir.Programs
	all     bool

	at    time.Time
	takes int // at that time
}

func (s *fakeSource) Changed() <-chan struct{} { return s.changed }

func (s *fakeSource) Take(Kind) Work {
	if now := time.Now(); now.Equal(s.at) {
		s.takes++
	} else {
		s.at, s.takes = now, 0
	}
	if s.takes == 20 {
		panic("20 syncs in no time")
	}
	w := Work{Programs: s.now, Changes: from(s.last, s.now), All: s.all}
	s.last, s.all = s.now, false
	return w
}

// world is a Reconciler under a fake clock, with all that surrounds it.
type world struct {
	*Reconciler
	t         *testing.T
	source    *fakeSource
	dataplane *fake
	drift     chan struct{}
	began     time.Time
	log       []string
	state     State // as reported last
	// incomplete are the frontends that incomplete syncs removed.
	incomplete []ir.Match
	passed     atomic.Int64 // shows the race detector that what a test sets comes before pass
}

// run starts a Reconciler in a bubble whose time passes only while everybody waits.
func run(t *testing.T, play func(w *world)) {
	runWith(t, func(*world) {}, play)
}

// runWith is run, but for what is set before the start.
func runWith(t *testing.T, set, play func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		dataplane, writer := newWriter()
		r := &Reconciler{Writer: *writer}
		w := &world{t: t, dataplane: dataplane, source: &fakeSource{changed: make(chan struct{}, 1), last: want(), now: want()},
			drift: make(chan struct{}, 1), began: time.Now()}
		w.Reconciler = r
		r.Schedule = Schedule{Min: time.Second, Retry: 30 * time.Second, Full: time.Hour}
		r.Source, r.Drift = w.source, w.drift
		r.Report = func(st State) { w.state = st }
		r.Synced = func(s *Sync) {
			line := time.Since(w.began).String() + " " + s.Kind.String()
			if s.Err != nil {
				line += ": " + s.Err.Error()
			}
			if s.Incomplete {
				w.incomplete = append(w.incomplete, s.Done.Removed...)
				return
			}
			w.log = append(w.log, line)
			if s.Kind == Full && s.Err == nil {
				if diff := cmp.Diff(lower(dataplane.applied.Programs()), lower(apply.Without(s.Work.Programs, s.Done.Refused))); diff != "" {
					t.Errorf("%s: what is reported to be in force (-applied +reported):\n%s", line, diff)
				}
			}
		}
		r.Now, r.After = func() time.Time {
			w.passed.Load()
			return time.Now()
		}, time.After
		set(w)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		synctest.Wait()
		play(w)
		cancel()
		<-done
	})
}

// slowly makes readings concurrent with changes.
func (w *world) slowly() *concurrent {
	c := &concurrent{fake: w.dataplane}
	w.Reconciler.Dataplane = c
	return c
}

func (w *world) want(services ...ir.Service) {
	synctest.Wait()
	w.source.now = want(services...)
	select {
	case w.source.changed <- struct{}{}:
	default:
	}
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	synctest.Wait()
	w.passed.Add(1)
	time.Sleep(d) // of the bubble: takes no time
	synctest.Wait()
}

func (w *world) logged(lines ...string) {
	w.t.Helper()
	if diff := cmp.Diff(lines, w.log); diff != "" {
		w.t.Errorf("syncs (-want +got):\n%s", diff)
	}
}

// ending is a Dataplane whose commits end the Reconciler.
type ending struct {
	*fake
	end func()
}

func (e *ending) Commit(ctx context.Context, plan apply.Plan) (apply.Result, error) {
	e.end()
	return e.fake.Commit(ctx, plan)
}

// A sync that ends the Reconciler reports the frontends that it removed.
func TestReconcilerReportsInterruptedSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dataplane, writer := newWriter()
		dataplane.rules = rules{{Namespace: "default", Name: "gone"}: 53}
		ctx, cancel := context.WithCancel(t.Context())
		writer.Dataplane = &ending{dataplane, cancel}
		var incomplete []ir.Match
		r := &Reconciler{Writer: *writer, Schedule: Schedule{Min: time.Second, Retry: time.Second, Full: time.Hour},
			Source: &fakeSource{changed: make(chan struct{}, 1), last: want(), now: want()}, Report: func(State) {}, Now: time.Now, After: time.After,
			Synced: func(s *Sync) {
				if s.Incomplete {
					incomplete = append(incomplete, s.Done.Removed...)
				}
			}}
		r.Run(ctx)
		if want := []ir.Match{{Port: 53}}; !cmp.Equal(incomplete, want, cmp.Comparer(func(a, b ir.Match) bool { return a == b })) {
			t.Errorf("removed: %v, want %v", incomplete, want)
		}
	})
}

func TestReconcilerFollows(t *testing.T) {
	run(t, func(w *world) {
		w.want(svc("a", 1))
		w.pass(5 * time.Second)
		w.want(svc("a", 2)) // after quiet: at once
		w.pass(100 * time.Millisecond)
		w.want(svc("a", 3)) // waits
		w.pass(100 * time.Millisecond)
		w.want(svc("a", 4)) // with this one
		w.pass(time.Minute)
		w.logged("0s full", "1s change", "5s change", "6s change")
		if diff := cmp.Diff(map[string]uint16{"a": 4}, named(w.dataplane.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

func TestReconcilerComparesHourly(t *testing.T) {
	run(t, func(w *world) {
		w.pass(10 * time.Minute)
		w.want(svc("a", 1))
		w.pass(2 * time.Hour)
		w.logged("0s full", "10m0s change", "1h0m0s full", "2h0m0s full")
	})
}

func TestReconcilerRetries(t *testing.T) {
	run(t, func(w *world) {
		w.pass(time.Minute)
		w.dataplane.fail = errors.New("busy")
		w.want(svc("a", 1))
		w.pass(time.Minute)
		w.logged("0s full", "1m0s change: busy", "1m1s full")
		if diff := cmp.Diff(map[string]uint16{"a": 1}, named(w.dataplane.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

func TestReconcilerSeesDrift(t *testing.T) {
	run(t, func(w *world) {
		w.want(svc("a", 1))
		w.pass(time.Minute)
		w.dataplane.rules = rules{}
		w.drift <- struct{}{}
		w.pass(time.Second)
		w.logged("0s full", "1s change", "1m0s full")
		if diff := cmp.Diff(map[string]uint16{"a": 1}, named(w.dataplane.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

// A change does not wait for a reading that is under way, but ends it.
func TestReconcilerChangesBesideReading(t *testing.T) {
	var d *concurrent
	runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
		w.want(svc("a", 1), svc("b", 1))
		w.pass(time.Minute)
		d.slow = make(chan struct{})
		d.rules[svc("a", 0).Name] = 9 // by somebody
		w.drift <- struct{}{}
		w.pass(time.Minute)
		w.want(svc("a", 1), svc("b", 2), svc("c", 3))
		w.pass(time.Minute)
		w.logged("0s full", "1s change", "2m0s change")
		if diff := cmp.Diff(map[string]uint16{"a": 9, "b": 2, "c": 3}, named(d.rules)); diff != "" {
			t.Errorf("beside the reading (-want +got):\n%s", diff)
		}
		close(d.slow)
		w.pass(time.Minute)
		w.logged("0s full", "1s change", "2m0s change", "3m0s full")
		if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 2, "c": 3}, named(d.rules)); diff != "" {
			t.Errorf("after it (-want +got):\n%s", diff)
		}
	})
}

// What a reading finds is repaired Schedule.Min after the last sync, together with changes.
func TestReconcilerRepairsInTime(t *testing.T) {
	var d *concurrent
	runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
		w.want(svc("a", 1))
		w.pass(time.Minute)
		w.want(svc("a", 1), svc("b", 1))
		w.pass(time.Second / 4)
		d.rules[svc("a", 0).Name] = 9
		w.drift <- struct{}{}
		w.want(svc("a", 1), svc("b", 2))
		w.pass(time.Second)
		w.want(svc("a", 1), svc("b", 3))
		w.pass(time.Minute)
		w.logged("0s full", "1s change", "1m0s change", "1m1s change", "1m2s full")
		if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 3}, named(d.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

// If changes make each reading useless, they wait for one.
func TestReconcilerReadsAlone(t *testing.T) {
	var d *concurrent
	runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
		w.want(svc("a", 1), svc("b", 1))
		w.pass(time.Minute)
		d.slow = make(chan struct{})
		d.rules[svc("a", 0).Name] = 9
		w.drift <- struct{}{}
		for port := range uint16(maxDropped) {
			w.pass(2 * time.Second)
			w.want(svc("a", 1), svc("b", port+2))
			w.pass(time.Second)
		}
		w.pass(2 * time.Second)
		w.logged("0s full", "1s change", "1m2s change", "1m5s change", "1m8s change", "1m9s full")
		if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 1 + maxDropped}, named(d.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

// A comparison may find a difference that no notification reported. The node is not ready until it is
// repaired.
func TestReconcilerNotReadyDuringRepair(t *testing.T) {
	var during []bool // for each commit, whether the rules counted as in force
	runWith(t, func(w *world) {
		w.Committing = func() { during = append(during, w.state.InForce()) }
	}, func(w *world) {
		w.want(svc("a", 1))
		w.pass(time.Minute)
		w.dataplane.rules[svc("a", 0).Name] = 9 // by another program, without a notification
		during = nil
		w.pass(time.Hour)
		w.logged("0s full", "1s change", "1h0m0s full")
		if diff := cmp.Diff([]bool{false}, during); diff != "" {
			t.Errorf("in force during the repair (-want +got):\n%s", diff)
		}
		if !w.state.InForce() {
			t.Errorf("not in force after the repair: %s", w.state.NotReady())
		}
	})
}

// What was touched by somebody during a reading is compared after it.
func TestReconcilerSeesDriftDuringReading(t *testing.T) {
	var d *concurrent
	runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
		w.want(svc("a", 1), svc("b", 1))
		w.pass(time.Minute)
		d.slow = make(chan struct{}, 2)
		w.drift <- struct{}{}
		w.pass(time.Minute)
		d.rules[svc("a", 0).Name] = 9
		w.drift <- struct{}{}
		w.pass(time.Minute)
		d.slow <- struct{}{}
		d.slow <- struct{}{}
		w.pass(time.Minute)
		w.logged("0s full", "1s change", "3m0s full", "3m1s full")
		if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 1}, named(d.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

// A Reconciler ends the reading under way, and one that fails is tried again.
func TestReconcilerReadingEnds(t *testing.T) {
	var d *concurrent
	runWith(t, func(w *world) { d = w.slowly() }, func(w *world) {
		w.want(svc("a", 1))
		w.pass(time.Minute)
		w.dataplane.fail = errors.New("busy")
		w.drift <- struct{}{}
		w.pass(10 * time.Second)
		w.logged("0s full", "1s change", "1m0s full: busy", "1m1s full")
		d.slow = make(chan struct{})
		w.drift <- struct{}{}
		w.pass(time.Second)
	})
}

// When the node changed, changes of Services do not tell all.
func TestReconcilerNodeChanged(t *testing.T) {
	run(t, func(w *world) {
		w.pass(time.Minute)
		w.source.all = true
		w.want()
		w.pass(time.Second)
		w.logged("0s full", "1m0s full")
	})
}

// The daemon goes on while its clock stands still: what times a wait out is due.
func TestReconcilerClockStands(t *testing.T) {
	run(t, func(w *world) {
		w.pass(time.Minute)
		stopped := time.Now()
		w.Now = func() time.Time { return stopped }
		w.want(svc("a", 1))
		w.pass(10 * time.Second)
		w.want(svc("a", 2))
		w.pass(10 * time.Second)
		w.dataplane.fail = errors.New("busy")
		w.want(svc("a", 3))
		w.pass(10 * time.Second)
		w.logged("0s full", "1m0s change", "1m11s change", "1m21s change: busy", "1m22s full")
		if diff := cmp.Diff(map[string]uint16{"a": 3}, named(w.dataplane.rules)); diff != "" {
			t.Errorf("in force (-want +got):\n%s", diff)
		}
	})
}

// Whoever has to know hears of each commit before the kernel does.
func TestReconcilerTellsOfCommits(t *testing.T) {
	run(t, func(w *world) {
		w.pass(time.Second)
		var had []map[string]uint16
		w.Committing = func() { had = append(had, named(w.dataplane.rules)) }
		w.dataplane.commits = 0
		w.want(svc("a", 1))
		w.pass(time.Minute)
		w.want(svc("a", 2), svc("b", 666)) // is refused, and a commit without it follows
		w.pass(20 * time.Second)
		if diff := cmp.Diff([]map[string]uint16{{}, {"a": 1}, {"a": 2}}, had); diff != "" || w.dataplane.commits == 0 {
			t.Errorf("in force before each commit, of %d (-want +got):\n%s", w.dataplane.commits, diff)
		}
	})
}

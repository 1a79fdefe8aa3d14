package reconcile

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

var histories = flag.Int("histories", 300, "random histories of faults to play")

// kernel is a Dataplane with faults at every step. Its commits and readings take time, and
// foreign edits happen meanwhile. What it holds outlives a restart of the Reconciler.
type kernel struct {
	fake // its rules are the kernel's; applied is memory of the process
	mu   sync.Mutex
	r    *rand.Rand
	// faulty has calls fail, and take time.
	faulty bool
	// strict is a kernel that refuses a plan for another state than it has, as nf_tables
	// does; otherwise it writes what the plan says, as iptables-restore does.
	strict bool
	full   time.Duration // between comparisons that nothing asks for
	// slow has readings run beside changes.
	slow  bool
	log   []string
	began time.Time
}

func (k *kernel) note(format string, args ...any) {
	k.log = append(k.log, time.Since(k.began).String()+" "+fmt.Sprintf(format, args...))
}

// chance reports whether one of n faults happens; it takes the lock's time.
func (k *kernel) chance(n int) bool { return k.faulty && k.r.IntN(n) == 0 }

// takeTime lets others act.
func (k *kernel) takeTime() {
	k.mu.Lock()
	var d time.Duration
	if k.faulty {
		d = time.Duration(k.r.IntN(2000)) * time.Millisecond
	}
	k.mu.Unlock()
	time.Sleep(d) // of the bubble
}

func (k *kernel) Read(context.Context, ir.Programs) (err error) {
	k.found, err = k.read()
	return err
}

func (k *kernel) read() (found rules, err error) {
	k.takeTime()
	k.mu.Lock()
	k.note("a reading")
	if found = maps.Clone(k.rules); k.chance(6) {
		k.note("it fails")
		found, err = nil, errors.New("read")
	}
	k.mu.Unlock()
	k.takeTime()
	return found, err
}

// slowKernel is a kernel whose readings run beside changes.
type slowKernel struct{ *kernel }

func (k slowKernel) ReadConcurrently(context.Context) (use func(), err error) {
	found, err := k.read()
	return func() { k.found = found }, err
}

func (k *kernel) Commit(ctx context.Context, p apply.Plan) (result apply.Result, err error) {
	k.takeTime()
	k.mu.Lock()
	defer func() {
		k.note("commit %v -> %v: refused %v, %v; the kernel has %v", named(p.(*fakePlan).have), named(p.(*fakePlan).want), result.Refused, err, named(k.rules))
		k.mu.Unlock()
		k.takeTime()
	}()
	plan := p.(*fakePlan)
	after := maps.Clone(k.rules)
	for op := range plan.Operations {
		was, is := plan.have[op.Service], k.rules[op.Service]
		if k.strict && was != is {
			return result, errors.New("the plan is from another state")
		}
		switch port := plan.want[op.Service]; port {
		case 0:
			if k.chance(4) {
				k.stuck[op.Service] = true
			} else {
				delete(after, op.Service)
			}
		case 666:
			result.Refused = append(result.Refused, apply.Refusal{Service: op.Service, Reason: errors.New("no")})
		default:
			after[op.Service] = port
			delete(k.stuck, op.Service)
		}
	}
	if plan.programs.IPv4 != nil {
		maps.DeleteFunc(k.stuck, func(n ir.Name, _ bool) bool { return plan.want[n] != 0 })
	}
	for _, name := range slices.SortedFunc(maps.Keys(k.stuck), ir.Name.Compare) {
		if k.chance(2) {
			result.RefusedRemovals = append(result.RefusedRemovals, apply.Refusal{Object: name.String(), Reason: errors.New("no")})
		} else {
			delete(after, name)
			delete(k.stuck, name)
		}
	}
	switch {
	case k.chance(8):
		return apply.Result{}, errors.New("commit, before it began")
	case k.chance(8):
		for op := range plan.Operations {
			if k.r.IntN(2) == 0 {
				set(k.rules, op.Service, after[op.Service])
			}
		}
		return apply.Result{}, errors.New("commit, in the middle")
	case k.chance(8):
		k.rules = after
		return apply.Result{}, errors.New("commit, after its end")
	}
	k.rules = after
	switch {
	case len(result.Refused) > 0:
	case plan.programs.IPv4 != nil:
		k.applied.Replace(plan.programs)
	default:
		k.applied.Change(plan.changes)
	}
	return result, nil
}

func set(r rules, name ir.Name, port uint16) {
	if port == 0 {
		delete(r, name)
	} else {
		r[name] = port
	}
}

// history is one random run.
type history struct {
	t      *testing.T
	k      *kernel
	source *fakeSource
	drift  chan struct{}
	wanted map[string]uint16 // ports of Services; 666 is refused

	mu      sync.Mutex
	unheard int // foreign edits that no token in drift announces yet
	state   State
	kill    func()
}

func (h *history) Changed() <-chan struct{} { return h.source.changed }

func (h *history) Take(kind Kind) Work {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	return h.source.Take(kind)
}

// start begins a process.
func (h *history) start() {
	h.k.applied, h.k.found = apply.Applied{}, nil
	r := &Reconciler{Writer: Writer{Dataplane: h.k}, Source: h, Drift: h.drift, Now: time.Now, After: time.After,
		Schedule: Schedule{Min: time.Second, Retry: 30 * time.Second, Full: h.k.full},
		Synced: func(s *Sync) {
			h.k.mu.Lock()
			defer h.k.mu.Unlock()
			h.k.note("%v sync ends: %v", s.Kind, s.Err)
			if s.Kind == Full && s.Err == nil {
				if diff := cmp.Diff(lower(h.k.applied.Programs()), lower(apply.Without(s.Work.Programs, s.Done.Refused))); diff != "" {
					h.t.Errorf("reported to be in force (-applied +reported):\n%s", diff)
				}
			}
		},
		Report: func(st State) {
			h.mu.Lock()
			h.state = st
			h.mu.Unlock()
			h.check("as reported")
		}}
	if h.k.slow {
		r.Dataplane = slowKernel{h.k}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	h.kill = func() { cancel(); <-done }
}

// check requires that the kernel has what is wanted if the node is ready and all
// news have been received.
func (h *history) check(when string) {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.NotReady() != "" || len(h.source.changed) > 0 || len(h.drift) > 0 || h.unheard > 0 {
		return
	}
	if diff := cmp.Diff(lower(h.source.now), h.k.rules); diff != "" {
		h.t.Errorf("%s, ready (-want +got):\n%s", when, diff)
	}
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (h *history) want(name string, port uint16) {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	h.wanted[name] = port
	var all []ir.Service
	for _, name := range slices.Sorted(maps.Keys(h.wanted)) {
		if port := h.wanted[name]; port != 0 {
			all = append(all, svc(name, port))
		}
	}
	h.source.now = want(all...)
	token(h.source.changed)
}

// edit is a foreign edit of which the Reconciler hears a little later.
func (h *history) edit(name string, port uint16, later time.Duration) {
	h.k.mu.Lock()
	set(h.k.rules, svc(name, 0).Name, port)
	h.k.mu.Unlock()
	h.mu.Lock()
	h.unheard++
	h.mu.Unlock()
	time.AfterFunc(later, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.unheard--
		token(h.drift)
	})
}

// step does something at random.
func (h *history) step() {
	k := h.k
	k.mu.Lock()
	what, name, port := k.r.IntN(20), string(rune('a'+k.r.IntN(4))), uint16(k.r.IntN(4))
	later := time.Duration(k.r.IntN(500)) * time.Millisecond
	k.mu.Unlock()
	note := func(format string, args ...any) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.note(format, args...)
	}
	switch {
	case what < 9:
		if what == 0 {
			name, port = "d", 666 // one at a time: the cause of several is shared
		}
		note("%s becomes %d", name, port)
		h.want(name, port)
	case what < 11:
		note("the Node changes, and %s becomes %d", name, port)
		k.mu.Lock()
		h.source.all = true
		k.mu.Unlock()
		h.want(name, port)
	case what < 12:
		note("a restart")
		h.kill()
		h.start()
	default:
		if port != 0 {
			port += 10
		}
		note("a foreign edit makes %s %d", name, port)
		h.edit(name, port, later)
	}
}

// TestHistories plays random histories: changes, changes of the Node, refused Services,
// foreign edits, restarts, and faults of each call. Two minutes after the last fault the
// kernel has what is wanted, and the node is never ready while it has not.
func TestHistories(t *testing.T) {
	for seed := range uint64(*histories) {
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, seed) })
		})
		if !ok {
			break
		}
	}
}

func play(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	k := &kernel{fake: fake{rules: rules{}, stuck: map[ir.Name]bool{}}, r: r, faulty: true, strict: seed%2 == 0, slow: seed%3 == 0, full: 20 * time.Second, began: time.Now()}
	if seed%4 < 2 {
		k.full = time.Hour // nothing but the doubts leads to a comparison
	}
	h := &history{t: t, k: k, drift: make(chan struct{}, 1), wanted: map[string]uint16{},
		source: &fakeSource{changed: make(chan struct{}, 1), last: want(), now: want()}}
	h.want("other", 1)
	h.start()
	defer func() {
		h.kill()
		if t.Failed() {
			t.Log(strings.Join(k.log, "\n"))
		}
	}()
	k.mu.Lock()
	waits := make([]time.Duration, 15)
	for i := range waits {
		waits[i] = time.Duration(r.IntN(4000)) * time.Millisecond
	}
	k.mu.Unlock()
	for _, wait := range waits {
		time.Sleep(wait) // of the bubble
		synctest.Wait()
		h.check("between two events")
		h.step()
	}
	synctest.Wait()
	k.mu.Lock()
	k.faulty = false
	k.mu.Unlock()
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	left := map[string]uint16{}
	refused := 0
	for name, port := range h.wanted {
		switch port {
		case 0:
		case 666:
			refused++
		default:
			left[name] = port
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if diff := cmp.Diff(left, named(k.rules)); diff != "" {
		t.Errorf("two minutes later (-want +got):\n%s", diff)
	}
	if !h.state.InForce() || len(h.state.Refused) != refused || !h.state.Waiting.IsZero() {
		t.Errorf("two minutes later: %+v, want all but %d Services in force", h.state, refused)
	}
}

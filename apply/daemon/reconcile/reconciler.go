package reconcile

import (
	"context"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Work is the desired state, and the changes since the previous Work.
type Work struct {
	// Programs are the desired Programs; without their Services if Changes are complete.
	Programs ir.Programs
	Changes  ir.Changes
	// All reports whether more than Changes may differ, since the node changed.
	All bool
}

// Source provides the desired Programs. One goroutine calls its methods.
type Source interface {
	// Changed returns a channel with a token when there may be new Work.
	Changed() <-chan struct{}
	// Take compiles what changed. For a full sync it returns complete Programs, and reads inputs that
	// have no notifications.
	Take(k Kind) Work
}

// Done is the result of a sync.
type Done struct {
	Operations apply.Count
	Removed    []ir.Match      // frontends
	Refused    []apply.Refusal // quarantined Services, which the kernel refuses
	Stuck      []apply.Stuck   // objects that the kernel does not remove
	// Commits were made one after the other. There are several if the kernel refused something.
	Commits    []Commit
	RefusedNow []apply.Refusal // refused in this sync
	// Drift counts operations that repair foreign changes. Only full syncs find any. DriftFirst are the
	// first operations, except those on objects in DriftGone. DriftMore is the number of further ones.
	// DriftBy are the programs that made the changes, if the kernel reports them.
	Drift      apply.Count
	DriftGone  []string // "table ip proxyc"
	DriftFirst []apply.Operation
	DriftMore  int
	DriftBy    []string
}

// Commit describes a committed Plan. It does not contain the Plan, which may be as large as all
// rules.
type Commit struct {
	First  []apply.Operation // the first operations
	Result apply.Result
}

// OperationsShown is the maximum number of operations in a Commit.
const OperationsShown = 1000

// Sync is a sync that has ended.
type Sync struct {
	Kind         Kind
	Began, Ended time.Time
	Work         Work
	Done         Done
	Err          error
	// Incomplete reports that the sync was interrupted or must be repeated. It may have removed
	// frontends that the next sync no longer finds.
	Incomplete bool
}

// Reconciler schedules the syncs of a Writer's Dataplane to the Programs of a Source.
type Reconciler struct {
	Writer
	Schedule Schedule
	Source   Source
	// Drift has a token when a foreign program may have changed the rules. Without it, only the
	// comparisons at the interval Schedule.Full find such changes.
	Drift <-chan struct{}
	// Synced is called after each sync, and Report with each new State. After a sync, Synced is called
	// first.
	Synced func(*Sync)
	Report func(State)
	// Tidy is work that can wait until the rules are applied.
	Tidy  Tidy
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time

	state   State
	repairs Done // of syncs that failed or are repeated, which the next successful one reports
	next    timing
	running chan *comparison // receives the running comparison when it ends; nil if none is running
}

// Run syncs immediately, and then whenever a sync is due, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	r.state.want(r.Now())
	r.report()
	for {
		if ctx.Err() != nil {
			r.shutdown()
			return
		}
		var timer <-chan time.Time
		at, ok := r.next.due(&r.Schedule, &r.state, r.running != nil)
		if ok {
			wait := max(0, at.Sub(r.Now()))
			if wait == 0 {
				r.sync(ctx, at)
				continue
			}
			timer = r.After(wait)
		}
		select {
		case <-ctx.Done():
			r.shutdown()
			return
		case c := <-r.running:
			r.finish(ctx, c)
		case <-r.Source.Changed():
			r.state.want(r.Now())
			r.next.applying.expedite()
			r.report()
		case <-r.Drift:
			r.state.doubt(r.Now())
			r.next.applying.expedite()
			r.next.comparing.expedite()
			r.report()
		case err := <-r.Tidy.running:
			r.Tidy.finish(r, err)
		case <-r.Tidy.next:
			r.Tidy.start(ctx, nil)
		case done := <-r.Tidy.requests():
			r.Tidy.start(ctx, done)
		case <-timer:
			r.sync(ctx, at) // now, even if Now does not advance
		}
	}
}

func (r *Reconciler) report() { r.Report(r.state) }

// sync runs the sync that was due at a time.
func (r *Reconciler) sync(ctx context.Context, due time.Time) {
	s := &Sync{Kind: Change, Began: r.Now()}
	version, doubts := r.state.Wanted, r.state.Doubts
	compare := r.state.Known && r.running == nil && r.next.comparisonDue(&r.Schedule, &r.state, later(due, s.Began))
	// Only a Replace retries unchanged quarantined Services.
	replace := !r.state.Known || r.next.replace || compare && len(r.refused) > 0
	if compare || replace {
		s.Kind = Full
	}
	s.Work = r.Source.Take(s.Kind)
	changed := len(s.Work.Changes.IPv4)+len(s.Work.Changes.IPv6) > 0
	if (changed || s.Work.All) && version == r.state.Applied { // no event has reported it yet
		r.state.want(s.Began)
		r.report()
		version = r.state.Wanted
	}
	if s.Work.All {
		replace, s.Kind = true, Full
	}
	if replace {
		r.comparison, r.next.replace = nil, false // Replace reads everything
		s.Done, s.Err = r.Replace(ctx, s.Work.Programs)
		r.settle(s, version, &doubts)
		r.end(ctx, s)
		return
	}
	if compare {
		s.Kind = Change
		r.compare(ctx, doubts)
		if !changed {
			r.state.apply(version, r.Now())
			r.report()
			return
		}
	}
	s.Done, s.Err = r.Change(ctx, &s.Work.Changes)
	r.settle(s, version, nil)
	r.end(ctx, s)
}

// settle records the end of a sync that began at a version. doubts, if set, is the number of doubts
// that it cleared.
func (r *Reconciler) settle(s *Sync, version uint64, doubts *uint64) {
	s.Ended = r.Now()
	r.next.ended = s.Ended
	r.known = s.Err == nil
	if s.Err != nil {
		r.comparison = nil // it began in another State
		r.repairs.addDrift(&s.Done)
		s.Done.clearDrift()
		r.state.fail(s.Ended, s.Err)
		r.next.applying.fail(&r.Schedule, s.Ended)
		return
	}
	s.Done.Stuck = r.stuck
	s.Done.addRepeated(&r.repairs)
	r.repairs = Done{}
	r.next.admit(&r.Schedule, r.state.Refused, s.Done.Refused, doubts != nil, s.Ended)
	r.state.Known, r.state.Refused = true, s.Done.Refused
	r.next.applying = retry{}
	defer r.settleStuck(s.Ended)
	if doubts != nil {
		r.next.comparing, r.next.compared = retry{}, s.Ended
		r.state.clear(*doubts, s.Ended)
	}
	r.state.apply(version, s.Ended)
}

// settleStuck schedules the next removal of stuck objects.
func (r *Reconciler) settleStuck(now time.Time) {
	was := len(r.state.Stuck)
	r.state.Stuck = r.stuck
	switch {
	case len(r.stuck) == 0:
		r.next.removing = retry{}
		if was > 0 { // comparisons excluded the objects
			r.state.doubt(now)
		}
	case !now.Before(r.next.removing.at):
		r.next.removing.fail(&r.Schedule, now)
	}
}

// end reports a sync.
func (r *Reconciler) end(ctx context.Context, s *Sync) {
	s.Incomplete = ctx.Err() != nil
	r.Synced(s)
	if s.Incomplete {
		return
	}
	r.report()
	if s.Err == nil {
		r.Tidy.first(ctx)
	}
}

// shutdown waits until all goroutines have ended.
func (r *Reconciler) shutdown() {
	if r.running != nil {
		<-r.running
	}
	if r.Tidy.running != nil {
		<-r.Tidy.running
	}
}

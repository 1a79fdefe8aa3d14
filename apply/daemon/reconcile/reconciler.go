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
	Refused    []apply.Refusal // Services that the kernel refuses
	// RefusedRemovals are the objects that the kernel refuses to remove.
	RefusedRemovals []apply.Refusal
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
	Now    func() time.Time
	After  func(time.Duration) <-chan time.Time

	state   State
	repairs Done // drift that failed syncs found, which the next successful one reports
	next    timing
	reading *reading      // the last concurrent one
	read    *reading      // that one, if it has ended and the next sync uses it
	running chan *reading // receives it when it ends; nil if none is running
	dropped int           // number of readings that syncs ended since the last comparison
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
		at, ok := r.next.due(&r.Schedule, &r.state, r.running != nil, r.read != nil)
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
			r.finish(c)
		case <-r.Source.Changed():
			r.state.want(r.Now())
			r.next.applying.expedite()
			r.report()
		case <-r.Drift:
			r.state.doubt(r.Now())
			r.next.applying.expedite()
			r.next.comparing.expedite()
			r.report()
		case <-timer:
			r.sync(ctx, at) // now, even if Now does not advance
		}
	}
}

func (r *Reconciler) report() { r.Report(r.state) }

// sync runs the sync that was due at a time.
func (r *Reconciler) sync(ctx context.Context, due time.Time) {
	if c := r.read; c != nil {
		r.read = nil
		r.perform(ctx, &Sync{Kind: Change, Began: c.began}, true, c.doubts, c.take)
		return
	}
	s := &Sync{Kind: Change, Began: r.Now()}
	compare := r.state.Known && r.running == nil && r.next.comparisonDue(&r.Schedule, &r.state, later(due, s.Began))
	if read := apply.ConcurrentRead(r.Dataplane); compare && read != nil && r.dropped < maxDropped {
		if r.state.Wanted == r.state.Applied {
			r.startReading(ctx, read)
			return
		}
		defer r.startReading(ctx, read) // the Change would make it useless
		compare = false
	}
	r.perform(ctx, s, compare, r.state.Doubts, r.Dataplane.Read)
}

// perform takes and commits Work. If compare is set, it first reads the kernel. This clears the first
// doubts. If the reading fails, changes are committed nevertheless.
func (r *Reconciler) perform(ctx context.Context, s *Sync, compare bool, doubts uint64, read func(context.Context, ir.Programs) error) {
	if r.running != nil {
		r.reading.ended = true
		r.reading.cancel()
	}
	replace := !r.state.Known
	if compare || replace {
		s.Kind = Full
	}
	version, changed := r.take(s)
	replace = replace || s.Work.All
	var drift Done
	if compare {
		same, err := r.Compare(ctx, read, &drift)
		if doubts = r.doubtDuring(&drift, doubts); err != nil && !replace {
			r.failComparison(ctx, s, err)
			if compare = false; !changed {
				return
			}
			s = &Sync{Kind: Change, Began: s.Began, Work: s.Work}
		}
		replace = replace || err == nil && (!same || len(r.refused) > 0) // only a Replace retries unchanged refused Services
	}
	var cleared *uint64
	if compare || replace {
		s.Kind, cleared = Full, &doubts
	}
	if replace {
		s.Done, s.Err = r.Replace(ctx, s.Work.Programs)
	} else {
		s.Done, s.Err = r.Change(ctx, &s.Work.Changes)
	}
	s.Done.addDrift(&drift)
	r.settle(s, version, cleared)
	r.end(ctx, s)
}

// doubtDuring adds a doubt that the repair of drift clears, unless it clears the newest one anyway. It
// returns the number of doubts to clear.
func (r *Reconciler) doubtDuring(drift *Done, doubts uint64) uint64 {
	if drift.Drift.Total() == 0 || r.state.Doubts != doubts {
		return doubts
	}
	r.state.doubt(r.Now())
	r.report()
	return r.state.Doubts
}

// take takes the Work of a sync. It returns its version, and whether Services changed.
func (r *Reconciler) take(s *Sync) (version uint64, changed bool) {
	s.Work = r.Source.Take(s.Kind)
	changed = len(s.Work.Changes.IPv4)+len(s.Work.Changes.IPv6) > 0
	if r.state.Wanted == r.state.Applied && (changed || s.Work.All) { // no event has reported it yet
		r.state.want(s.Began)
		r.report()
	}
	return r.state.Wanted, changed
}

// settle records the end of a sync that began at a version. doubts, if set, is the number of doubts
// that it cleared.
func (r *Reconciler) settle(s *Sync, version uint64, doubts *uint64) {
	s.Ended = r.Now()
	r.next.ended = s.Ended
	r.known, r.compared = s.Err == nil, false
	if s.Err != nil {
		r.repairs.addDrift(&s.Done)
		s.Done.clearDrift()
		r.state.fail(s.Ended, s.Err)
		r.next.applying.fail(&r.Schedule, s.Ended)
		return
	}
	s.Done.RefusedRemovals = r.refusedRemovals
	s.Done.addDrift(&r.repairs)
	r.repairs = Done{}
	r.next.admit(&r.Schedule, r.state.Refused, s.Done.Refused, doubts != nil, s.Ended)
	r.state.Known, r.state.Refused = true, s.Done.Refused
	r.next.applying = retry{}
	defer r.settleRemovals(s.Ended)
	if doubts != nil {
		r.next.comparing, r.next.compared, r.dropped = retry{}, s.Ended, 0
		r.state.clear(*doubts, s.Ended)
	}
	r.state.apply(version, s.Ended)
}

// settleRemovals schedules the next attempt of refused removals.
func (r *Reconciler) settleRemovals(now time.Time) {
	was := len(r.state.RefusedRemovals)
	r.state.RefusedRemovals = r.refusedRemovals
	switch {
	case len(r.refusedRemovals) == 0:
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
	if !s.Incomplete {
		r.report()
	}
}

// shutdown waits until a concurrent reading has ended.
func (r *Reconciler) shutdown() {
	if r.running != nil {
		<-r.running
	}
}

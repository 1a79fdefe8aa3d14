package reconcile

import (
	"context"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Work is what is wanted now, and what changed since the last Work.
type Work struct {
	// Programs are what is wanted; without their Services if Changes are complete.
	Programs ir.Programs
	Changes  ir.Changes
	// All reports whether more than Changes may differ: the node does.
	All bool
}

// Source is where Programs come from. Its methods are called by one goroutine.
type Source interface {
	// Changed has a token when there is something to take.
	Changed() <-chan struct{}
	// Take compiles what changed. A full sync gets whole Programs, and reads
	// what no event announces.
	Take(k Kind) Work
}

// Done is what a sync did.
type Done struct {
	Operations apply.Count
	Removed    []ir.Match      // frontends
	Refused    []apply.Refusal // Services that are left out, since the kernel refuses them
	// Commits were carried out one after the other; more than one where the
	// kernel refused something.
	Commits    []Commit
	RefusedNow []apply.Refusal // those that were tried in this sync
	// Drift are operations that undo foreign changes; only a full sync
	// finds any. DriftFirst are the first of them, without those on what is in
	// DriftGone, and DriftMore is how many follow these. DriftBy is who did it, if
	// the kernel reports it.
	Drift      apply.Count
	DriftGone  []string // "table ip proxyc"
	DriftFirst []apply.Operation
	DriftMore  int
	DriftBy    []string
}

// Commit describes a Plan that was carried out. The Plan itself may
// have all that the kernel holds.
type Commit struct {
	First  []apply.Operation // the first of its operations
	Result apply.Result
}

// OperationsShown is how many operations of a plan a Commit lists at most.
const OperationsShown = 1000

// Sync is one sync that has ended.
type Sync struct {
	Kind         Kind
	Began, Ended time.Time
	Work         Work
	Done         Done
	Err          error
}

// Reconciler keeps a Dataplane equal to what its Source wants.
type Reconciler struct {
	Schedule  Schedule
	Source    Source
	Dataplane apply.Dataplane
	// Drift has a token when a foreign program may have changed the rules. Without it
	// only the comparisons that Schedule.Full spaces find such changes.
	Drift <-chan struct{}
	// Synced is called after each sync, and Report with each new State; after a sync,
	// Synced comes first.
	Synced func(*Sync)
	Report func(State)
	// Committing, if set, is called before each commit: until a sync has succeeded after
	// it, the kernel's content is unknown.
	Committing func()
	// Tidy does what can wait until the rules are in force.
	Tidy Tidy
	// Trim, if set, is called where much garbage is left, just when the tools and the
	// kernel need memory, too.
	Trim  func()
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time

	state   State
	refused map[ir.Name]refusal

	ended    time.Time // of the last sync
	compared time.Time // of the last successful Replace or Compare
	applying retry     // of Replaces
	compares retry     // of comparisons
	replace  bool      // a Repair is not possible beside Changes

	running    chan *comparison // gets the comparison whose reading is under way; nil: none
	comparison *comparison      // that reading, while it counts
}

// Run syncs immediately, and then whenever a sync is due, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	r.state.want(r.Now())
	r.report()
	for {
		var timer <-chan time.Time
		at, ok := r.due()
		if ok {
			wait := at.Sub(r.Now())
			if wait <= 0 {
				if ctx.Err() != nil {
					r.shutdown()
					return
				}
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
			r.applying.soon()
			r.report()
		case <-r.Drift:
			r.state.doubt(r.Now())
			r.applying.soon()
			r.compares.soon()
			r.report()
		case err := <-r.Tidy.running:
			r.Tidy.finish(r, err)
		case <-r.Tidy.next:
			r.Tidy.start(ctx, nil)
		case done := <-r.Tidy.requests():
			r.Tidy.start(ctx, done)
		case <-timer:
			r.sync(ctx, at) // also where Now stands still
		}
	}
}

func (r *Reconciler) report() { r.Report(r.state) }

// sync carries out what was due at a time.
func (r *Reconciler) sync(ctx context.Context, due time.Time) {
	s := &Sync{Kind: Change, Began: r.Now()}
	version, doubts := r.state.Wanted, r.state.Doubts
	compare := r.state.Known && r.comparisonDue(later(due, s.Began))
	// Refused Services are tried again only by a Replace.
	replace := !r.state.Known || r.replace || compare && len(r.refused) > 0
	if compare || replace {
		s.Kind = Full
	}
	s.Work = r.Source.Take(s.Kind)
	changed := len(s.Work.Changes.IPv4)+len(s.Work.Changes.IPv6) > 0
	if (changed || s.Work.All) && version == r.state.Applied { // no event has announced it yet
		r.state.want(s.Began)
		r.report()
		version = r.state.Wanted
	}
	if s.Work.All {
		replace, s.Kind = true, Full
	}
	if replace {
		r.comparison, r.replace = nil, false // this reads everything
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
	s.Done, s.Err = r.Change(ctx, s.Work.Changes)
	r.settle(s, version, nil)
	r.end(ctx, s)
}

// settle enters how a sync ended, that was begun for a version; doubts, if set, are those
// that it cleared.
func (r *Reconciler) settle(s *Sync, version uint64, doubts *uint64) {
	s.Ended = r.Now()
	r.ended = s.Ended
	if s.Err != nil {
		r.comparison = nil // it was begun for another state
		r.state.fail(s.Ended, s.Err)
		r.applying.fail(&r.Schedule, s.Ended)
		return
	}
	r.state.Known, r.state.Refused = true, s.Done.Refused
	r.applying = retry{}
	if doubts != nil {
		r.compares, r.compared = retry{}, s.Ended
		r.state.clear(*doubts, s.Ended)
	}
	r.state.apply(version, s.Ended)
}

// end reports a sync.
func (r *Reconciler) end(ctx context.Context, s *Sync) {
	if ctx.Err() != nil {
		return
	}
	r.Synced(s)
	r.report()
	if s.Err == nil {
		r.Tidy.first(ctx)
	}
}

// shutdown waits for the goroutines.
func (r *Reconciler) shutdown() {
	if r.running != nil {
		<-r.running
	}
	if r.Tidy.running != nil {
		<-r.Tidy.running
	}
}

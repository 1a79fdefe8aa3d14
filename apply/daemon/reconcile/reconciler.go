package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Work is what is wanted now, and what changed since the last Work.
type Work struct {
	// Programs are what is wanted; without their Services where Changes tell all.
	Programs ir.Programs
	Changes  ir.Changes
	// All reports whether more than Changes says may differ: the node does.
	All bool
}

// Source is where Programs come from. Its methods are called by one goroutine.
type Source interface {
	// Changed has a token when there is something to take.
	Changed() <-chan struct{}
	// Take compiles what changed. For a full sync it gives whole Programs, and
	// looks at what nobody tells of.
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
	// Drift are operations that undo what somebody else did; only a full sync
	// finds any. DriftFirst are the first of them, without those on what is in
	// DriftGone, and DriftMore is how many follow these. DriftBy is who did it, as
	// far as the kernel tells.
	Drift      apply.Count
	DriftGone  []string // "table ip proxyc"
	DriftFirst []apply.Operation
	DriftMore  int
	DriftBy    []string
}

// Commit is what is told of a Plan that was carried out. The Plan itself may
// have all that the kernel holds.
type Commit struct {
	First  []apply.Operation // the first of its operations
	Result apply.Result
}

// OperationsShown is how many operations of a plan are told at most.
const OperationsShown = 1000

// Sync is one sync that has ended.
type Sync struct {
	Kind         Kind
	Began, Ended time.Time
	Work         Work
	Done         Done
	Err          error
}

// Reconciler keeps a Dataplane at what its Source wants.
type Reconciler struct {
	Schedule  Schedule
	Source    Source
	Dataplane apply.Dataplane
	// Drift has a token when the rules may have been changed by somebody else;
	// nil: nobody knows.
	Drift <-chan struct{}
	// Queued is told of each request for a sync, Synced of each sync.
	Queued func(Kind)
	Synced func(*Sync)
	// Committing is told before each commit: until a sync has succeeded after it,
	// nobody knows what the kernel has. nil: nobody wants to know.
	Committing func()
	// Tidy does what can wait until the rules are in force: it is called once after
	// the first sync that succeeds, and again, later each time, as long as it gives
	// an error. Changes go on beside it. nil: there is nothing.
	Tidy func(context.Context) error
	// Untidy has something when Tidy is to be called again: what is to be told the
	// error of that call. nil: it never is.
	Untidy <-chan func(error)
	// Trim is called where much garbage is left, just when others need memory,
	// too: the tools and the kernel; nil: nothing is done about it.
	Trim  func()
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time

	refused   map[ir.Name]refusal
	comparing *comparison // under way; nil: none

	compared chan compared // of the comparison under way; nil: none
	again    bool          // another one is wanted after it
	alone    bool          // the next one is made with nothing beside it
	// known reports whether the node has what the Dataplane has applied; if not,
	// nobody knows what it has.
	known bool

	tidied   bool             // Tidy was called
	tidying  chan error       // gets what the Tidy under way ends with; nil: none is
	untidy   int              // how often it failed
	tidyNext <-chan time.Time // when it is called again; nil: it is not
}

// compared is a comparison that has ended.
type compared struct {
	*comparison
	began time.Time
	err   error
}

// Run syncs once at once, and then whenever it is due, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	r.ask(Full)
	for {
		wait := r.Schedule.Next().Sub(r.Now())
		if wait <= 0 {
			if ctx.Err() != nil {
				r.shutdown()
				return
			}
			r.sync(ctx)
			continue
		}
		select {
		case <-ctx.Done():
			r.shutdown()
			return
		case c := <-r.compared:
			r.finish(ctx, c)
		case <-r.Source.Changed():
			r.ask(Change)
		case <-r.Drift:
			r.ask(Full)
		case err := <-r.tidying:
			r.finishTidying(err)
		case <-r.tidyNext:
			r.tidy(ctx, func(error) {})
		case tidied := <-r.askedToTidy():
			r.tidy(ctx, tidied)
		case <-r.After(wait):
			r.sync(ctx) // it is due, also where Now stands still
		}
	}
}

func (r *Reconciler) ask(k Kind) {
	r.Schedule.Ask(k)
	r.Queued(k)
}

func (r *Reconciler) sync(ctx context.Context) {
	s := &Sync{Kind: r.Schedule.Begin(), Began: r.Now()}
	s.Work = r.Source.Take(s.Kind)
	switch {
	case s.Work.All:
		s.Kind = Full
	case s.Kind == Full && r.compare(ctx):
		if len(s.Work.Changes.IPv4)+len(s.Work.Changes.IPv6) == 0 {
			return
		}
		s.Kind = Change
	}
	if s.Kind == Full {
		r.alone = false
		s.Done, s.Err = r.Replace(ctx, s.Work.Programs)
	} else {
		s.Done, s.Err = r.Change(ctx, s.Work.Changes)
		r.alone = s.Err != nil
	}
	r.end(ctx, s)
}

func (r *Reconciler) end(ctx context.Context, s *Sync) {
	s.Ended = r.Now()
	r.Schedule.End(s.Kind, s.Ended, s.Err == nil)
	if ctx.Err() != nil {
		return
	}
	r.Synced(s)
	if s.Err == nil && !r.tidied && r.Tidy != nil {
		r.tidied = true
		r.tidy(ctx, func(error) {})
	}
}

// tidy begins to tidy up, and tells a function what came of it.
func (r *Reconciler) tidy(ctx context.Context, then func(error)) {
	r.tidyNext = nil
	done := make(chan error, 1)
	r.tidying = done
	go func() {
		err := r.Tidy(ctx)
		then(err)
		done <- err
	}()
}

// askedToTidy has something when Tidy is to be called again, and can be.
func (r *Reconciler) askedToTidy() <-chan func(error) {
	if r.tidying != nil {
		return nil
	}
	return r.Untidy
}

func (r *Reconciler) finishTidying(err error) {
	r.tidying = nil
	if err == nil {
		r.untidy = 0
		return
	}
	r.untidy++
	r.tidyNext = r.After(r.Schedule.backoff(r.untidy))
}

// compare lets everything be compared beside the changes to come, and reports
// whether that is possible.
func (r *Reconciler) compare(ctx context.Context) bool {
	if r.alone {
		return false
	}
	if r.compared != nil {
		r.again = true
		return true
	}
	work := r.begin()
	if work == nil {
		return false
	}
	began := r.Now()
	r.Schedule.Comparing(began)
	done := make(chan compared, 1)
	r.compared = done
	go func() {
		c, err := work(ctx)
		done <- compared{c, began, err}
	}()
	return true
}

// finish does what a comparison that has ended gives reason to.
func (r *Reconciler) finish(ctx context.Context, c compared) {
	r.compared = nil
	s := &Sync{Kind: Full, Began: c.began, Err: c.err}
	if s.Err == nil {
		s.Done, s.Err = r.repair(ctx, c.comparison)
	}
	if r.again {
		r.again = false
		r.ask(Full)
	}
	if errors.Is(s.Err, errAgain) {
		r.alone = true
		r.ask(Full)
		return
	}
	switch {
	case s.Err != nil:
	case c.inexact:
		s.Work.Programs = r.Dataplane.Applied()
	default:
		s.Work.Programs = c.inForce()
	}
	r.end(ctx, s)
}

// shutdown waits for what is under way beside changes.
func (r *Reconciler) shutdown() {
	if r.compared != nil {
		<-r.compared
	}
	if r.tidying != nil {
		<-r.tidying
	}
}

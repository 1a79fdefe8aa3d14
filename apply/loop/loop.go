package loop

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
	// All tells that more than Changes says may differ: the node did.
	All bool
}

// Input is where Programs come from. Its methods are called by one goroutine.
type Input interface {
	// Changed gives a token when there is something to take.
	Changed() <-chan struct{}
	// Take compiles what changed. For a full sync it gives whole Programs, and
	// looks at what nobody tells of.
	Take(k Kind) Work
}

// Done is what a sync did.
type Done struct {
	Operations apply.Count
	Gone       []ir.Match      // frontends that went
	Refused    []apply.Refusal // Services that are left out, since the kernel refuses them
	// Plans were carried out one after the other; more than one where the
	// kernel refused something.
	Plans      []Carried
	RefusedNow []apply.Refusal // those that were tried in this sync
	// Drift are operations that undo what somebody else did; only a full sync
	// finds any. DriftFirst are the first of them.
	Drift      apply.Count
	DriftFirst []apply.Operation
}

// Carried is what is told of a plan that was carried out. The plan itself may
// have all that the kernel holds.
type Carried struct {
	First  []apply.Operation  // the first of its operations
	Tables []apply.TableCount // of dataplanes that keep rules in tables
	Kept   ir.PerFamily[int]  // how many objects the kernel did not let go
}

// OperationsShown is how many operations of a plan are told at most.
const OperationsShown = 1000

// Kernel is where Programs go.
type Kernel interface {
	// Replace makes the kernel hold the programs, whatever it holds now.
	Replace(ctx context.Context, programs ir.Programs) (Done, error)
	// Change makes the kernel hold what differs by changes from the last call,
	// which gave no error.
	Change(ctx context.Context, changes ir.Changes) (Done, error)
	// Compare begins to compare the kernel with what was last given to it. The
	// function that it gives, which may be nil where only a Replace can do that,
	// goes on while Changes are made, on another goroutine. Repair, which is called
	// with what it gave, makes good what it found.
	Compare() func(ctx context.Context) (*Comparison, error)
	Repair(ctx context.Context, c *Comparison) (Done, error)
	// InForce gives what the kernel held when that was last known. It may be
	// called from any goroutine.
	InForce() ir.Programs
}

// Sync is one sync that has ended.
type Sync struct {
	Kind         Kind
	Began, Ended time.Time
	Work         Work
	Done         Done
	Err          error
}

// Loop keeps a kernel at what its Input wants.
type Loop struct {
	Schedule Schedule
	Input    Input
	Kernel   Kernel
	// Suspect gives a token when the kernel may have been changed by somebody
	// else; nil: nobody knows.
	Suspect <-chan struct{}
	// Queued is told of each request for a sync, Synced of each sync.
	Queued func(Kind)
	Synced func(*Sync)
	Now    func() time.Time
	After  func(time.Duration) <-chan time.Time

	compared chan compared // of the comparison under way; nil: none
	again    bool          // another one is wanted after it
	alone    bool          // the next one is made with nothing beside it
}

// compared is a comparison that has ended.
type compared struct {
	*Comparison
	began time.Time
	err   error
}

// Run syncs once at once, and then whenever it is due, until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	l.ask(Full)
	for {
		wait := l.Schedule.Next().Sub(l.Now())
		if wait <= 0 {
			if ctx.Err() != nil {
				l.wind()
				return
			}
			l.sync(ctx)
			continue
		}
		select {
		case <-ctx.Done():
			l.wind()
			return
		case c := <-l.compared:
			l.repair(ctx, c)
		case <-l.Input.Changed():
			l.ask(Change)
		case <-l.Suspect:
			l.ask(Full)
		case <-l.After(wait):
			l.sync(ctx) // it is due, also where Now stands still
		}
	}
}

func (l *Loop) ask(k Kind) {
	l.Schedule.Ask(k)
	l.Queued(k)
}

func (l *Loop) sync(ctx context.Context) {
	s := &Sync{Kind: l.Schedule.Begin(), Began: l.Now()}
	s.Work = l.Input.Take(s.Kind)
	switch {
	case s.Work.All:
		s.Kind = Full
	case s.Kind == Full && l.compare(ctx):
		if len(s.Work.Changes.IPv4)+len(s.Work.Changes.IPv6) == 0 {
			return
		}
		s.Kind = Change
	}
	if s.Kind == Full {
		l.alone = false
		s.Done, s.Err = l.Kernel.Replace(ctx, s.Work.Programs)
	} else {
		s.Done, s.Err = l.Kernel.Change(ctx, s.Work.Changes)
		l.alone = s.Err != nil
	}
	l.end(ctx, s)
}

func (l *Loop) end(ctx context.Context, s *Sync) {
	s.Ended = l.Now()
	l.Schedule.End(s.Kind, s.Ended, s.Err == nil)
	if ctx.Err() == nil {
		l.Synced(s)
	}
}

// compare lets everything be compared beside the changes to come, and tells
// whether that is possible.
func (l *Loop) compare(ctx context.Context) bool {
	if l.alone {
		return false
	}
	if l.compared != nil {
		l.again = true
		return true
	}
	work := l.Kernel.Compare()
	if work == nil {
		return false
	}
	began := l.Now()
	l.Schedule.Comparing(began)
	done := make(chan compared, 1)
	l.compared = done
	go func() {
		c, err := work(ctx)
		done <- compared{c, began, err}
	}()
	return true
}

// repair does what a comparison that has ended gives reason to.
func (l *Loop) repair(ctx context.Context, c compared) {
	l.compared = nil
	s := &Sync{Kind: Full, Began: c.began, Err: c.err}
	if s.Err == nil {
		s.Done, s.Err = l.Kernel.Repair(ctx, c.Comparison)
	}
	if l.again {
		l.again = false
		l.ask(Full)
	}
	if errors.Is(s.Err, errAgain) {
		l.alone = true
		l.ask(Full)
		return
	}
	s.Work.Programs = l.Kernel.InForce()
	l.end(ctx, s)
}

// wind waits for the comparison under way.
func (l *Loop) wind() {
	if l.compared != nil {
		<-l.compared
	}
}

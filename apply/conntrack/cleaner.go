package conntrack

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Cleaner deletes stale flows beside the syncs that make them so, which need
// not wait for it. It goes through the table for one sync at a time; what
// several ask for meanwhile becomes one. After an error it goes through the table
// again by itself. Its methods may be called by several goroutines.
//
// What it deletes was stale by what was in force after it had been read: new
// rules may lead a flow to a new endpoint before anybody has said that they are
// in force, and to what was in force before it would look stale.
type Cleaner struct {
	clean   func(context.Context, *Selector, func([]Stale) ([]Stale, error)) (int, error)
	done    func(Cleaned)
	longest time.Duration // to wait after an error
	wake    chan struct{}
	inForce ir.PerFamily[*frontends]

	mu      sync.Mutex
	settled chan struct{}        // closed when the commit under way has been told of; nil: there is none
	waiting ir.PerFamily[*scope] // to be cleaned
	running ir.PerFamily[*scope] // being cleaned
	failed  ir.PerFamily[bool]   // the last time; what was being cleaned waits again
	removed map[ir.Match]bool    // as NoteRemoved has it; at most maxRemoved
}

// Cleaned is the result of one way through the table of a family.
type Cleaned struct {
	Family  ir.Family
	Deleted int
	Took    time.Duration
	Err     error
}

// NewCleaner returns a Cleaner that reports to done what it did. After an error
// it waits for apply.FirstRetry, then twice as long each time, up to longest; a
// sync comes sooner.
func NewCleaner(longest time.Duration, done func(Cleaned)) *Cleaner {
	return &Cleaner{clean: Clean, done: done, longest: longest, wake: make(chan struct{}, 1),
		inForce: ir.PerFamily[*frontends]{IPv4: &frontends{}, IPv6: &frontends{}}}
}

// Committing notes that the kernel's rules are about to change: from now on
// nobody knows what is in force, until Ended.
func (c *Cleaner) Committing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled == nil {
		c.settled = make(chan struct{})
	}
}

// NoteRemoved notes frontends that may be gone without Ended: a sync that failed
// was to remove them, and a later one finds no more of them to remove. Their flows
// are looked at with those of the next sync that compares all.
func (c *Cleaner) NoteRemoved(removed []ir.Match) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range removed {
		if m.Protocol != ir.UDP || len(c.removed) >= maxRemoved {
			continue
		}
		if c.removed == nil {
			c.removed = map[ir.Match]bool{}
		}
		c.removed[m] = true
	}
}

// takeRemoved returns what NoteRemoved noted, and forgets it.
func (c *Cleaner) takeRemoved() []ir.Match {
	c.mu.Lock()
	defer c.mu.Unlock()
	removed := slices.Collect(maps.Keys(c.removed))
	c.removed = nil
	return removed
}

// Ended notes what is in force after a sync that succeeded, and asks for the
// flows to be looked at that it has to do with.
func (c *Cleaner) Ended(w Work) {
	if w.All { // before the first of them it is not known what is in force
		w.Removed = append(c.takeRemoved(), w.Removed...)
	}
	var came ir.PerFamily[*scope]
	for f, inForce := range c.inForce.All() {
		*came.At(f) = inForce.take(f, &w)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, s := range ir.Present(came) {
		if c.waiting.Of(f) != nil || !s.selector(f, c.inForce.Of(f)).Idle() {
			*c.waiting.At(f) = s.and(c.waiting.Of(f))
		}
	}
	if c.settled != nil {
		close(c.settled)
		c.settled = nil
	}
	if c.waiting == (ir.PerFamily[*scope]{}) {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// Busy reports whether flows of a sync that has ended are still to be looked at.
// Nobody is to wait for a family of which that failed: it may go on failing.
func (c *Cleaner) Busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range ir.Families() {
		if !c.failed.Of(f) && (c.waiting.Of(f) != nil || c.running.Of(f) != nil) {
			return true
		}
	}
	return false
}

// Run cleans until ctx ends.
func (c *Cleaner) Run(ctx context.Context) {
	failures := 0
	var retry <-chan time.Time // nil: nothing failed
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry:
		}
		failed, ended := c.run(ctx)
		switch {
		case ended:
			return
		case failed:
			failures++
			retry = time.After(apply.Backoff(failures, apply.FirstRetry, c.longest))
		default:
			failures, retry = 0, nil
		}
	}
}

// run cleans what waits, and reports whether some of it failed, and whether ctx
// has ended.
func (c *Cleaner) run(ctx context.Context) (failed, ended bool) {
	c.mu.Lock()
	c.running, c.waiting = c.waiting, ir.PerFamily[*scope]{}
	c.mu.Unlock()
	for f, s := range ir.Present(c.running) {
		out := Cleaned{Family: f}
		if sel := s.selector(f, c.inForce.Of(f)); !sel.Idle() {
			began := time.Now()
			out.Deleted, out.Err = c.clean(ctx, sel, c.still(ctx, sel))
			if ctx.Err() != nil {
				return false, true
			}
			out.Took = time.Since(began)
			c.done(out)
		} else if c.failed.Of(f) { // and what did is nobody's any longer
			c.done(out)
		}
		c.ran(f, out.Err != nil)
		failed = failed || out.Err != nil
	}
	return failed, false
}

// ran notes that a family was cleaned, or that it has to be again.
func (c *Cleaner) ran(f ir.Family, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if failed {
		*c.waiting.At(f) = c.waiting.Of(f).and(c.running.Of(f)).bounded(c.inForce.Of(f))
	}
	*c.running.At(f), *c.failed.At(f) = nil, failed
}

// still returns what picks those of the stale entries that are stale by what
// is in force now. It waits until somebody knows what that is.
func (c *Cleaner) still(ctx context.Context, sel *Selector) func([]Stale) ([]Stale, error) {
	return func(stale []Stale) ([]Stale, error) {
		if err := c.settle(ctx); err != nil {
			return nil, err
		}
		return slices.DeleteFunc(stale, func(s Stale) bool {
			_, ok := sel.Stale(s.Entry)
			return !ok
		}), nil
	}
}

// settle waits until it is known what is in force.
func (c *Cleaner) settle(ctx context.Context) error {
	for {
		c.mu.Lock()
		settled := c.settled
		c.mu.Unlock()
		if settled == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-settled:
		}
	}
}

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

// Cleaner deletes stale flows asynchronously, so that syncs need not wait. It reads the table for
// one sync at a time; requests that arrive meanwhile are merged. After an error it retries. Its
// methods are safe for concurrent use.
//
// An entry is deleted only if it is stale by the rules in force after it was read. New rules may
// send a flow to a new endpoint before EndCommit reports that they are in force. By the previous rules
// such a flow would look stale.
type Cleaner struct {
	clean   func(context.Context, *Selector, func([]Stale) ([]Stale, error)) (int, error)
	done    func(Cleaned)
	longest time.Duration // longest wait after an error
	wake    chan struct{}
	inForce ir.PerFamily[*frontends]

	mu      sync.Mutex
	settled chan struct{}        // closed when the current commit ends; nil without one
	waiting ir.PerFamily[*scope] // to be cleaned
	running ir.PerFamily[*scope] // being cleaned
	failed  ir.PerFamily[bool]   // the last attempt failed; its scope waits again
	removed map[ir.Match]bool    // from NoteRemoved
}

// Cleaned is the result of one pass through the table of a family.
type Cleaned struct {
	Family  ir.Family
	Deleted int
	Took    time.Duration
	Err     error
}

// NewCleaner returns a Cleaner that reports each pass to done. After an error it waits for
// apply.FirstRetry, then twice as long each time, up to longest. A sync starts a pass earlier.
func NewCleaner(longest time.Duration, done func(Cleaned)) *Cleaner {
	return &Cleaner{clean: Clean, done: done, longest: longest, wake: make(chan struct{}, 1),
		inForce: ir.PerFamily[*frontends]{IPv4: &frontends{}, IPv6: &frontends{}}}
}

// BeginCommit records that the kernel's rules are about to change. Until EndCommit, the rules in force
// are unknown.
func (c *Cleaner) BeginCommit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled == nil {
		c.settled = make(chan struct{})
	}
}

// NoteRemoved records frontends that a failed sync may have removed. A later sync does not find
// them, so EndCommit does not receive them. Their flows are checked with those of the next full sync.
func (c *Cleaner) NoteRemoved(removed []ir.Match) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range removed {
		if m.Protocol != ir.UDP {
			continue
		}
		ir.SetIn(&c.removed, m, true)
	}
}

// clearRemoved returns and clears the frontends of NoteRemoved.
func (c *Cleaner) clearRemoved() []ir.Match {
	c.mu.Lock()
	defer c.mu.Unlock()
	removed := slices.Collect(maps.Keys(c.removed))
	c.removed = nil
	return removed
}

// EndCommit records the rules in force after a successful sync, and requests a pass over the flows
// that the sync affects.
func (c *Cleaner) EndCommit(w Work) {
	if w.All { // the rules in force are unknown before the first full sync
		w.Removed = append(c.clearRemoved(), w.Removed...)
	}
	var came ir.PerFamily[*scope]
	for f, inForce := range c.inForce.All() {
		*came.At(f) = inForce.update(f, &w)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, s := range ir.Present(came) {
		if c.waiting.Of(f) != nil || !s.selector(f, c.inForce.Of(f)).Idle() {
			*c.waiting.At(f) = s.union(c.waiting.Of(f))
		}
	}
	if c.settled != nil {
		close(c.settled)
		c.settled = nil
	}
	if c.waiting == (ir.PerFamily[*scope]{}) {
		return
	}
	apply.Wake(c.wake)
}

// Busy reports whether flows of a sync that has ended are still to be checked. A family whose last
// pass failed does not count, since it may keep failing.
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
	var retry <-chan time.Time // nil after a success
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

// run cleans the waiting scopes. failed reports whether any pass failed, ended whether ctx has
// ended.
func (c *Cleaner) run(ctx context.Context) (failed, ended bool) {
	c.mu.Lock()
	c.running, c.waiting = c.waiting, ir.PerFamily[*scope]{}
	c.mu.Unlock()
	for f, s := range ir.Present(c.running) {
		out := Cleaned{Family: f}
		if sel := s.selector(f, c.inForce.Of(f)); !sel.Idle() {
			began := time.Now()
			out.Deleted, out.Err = c.clean(ctx, sel, c.stillStale(ctx, sel))
			if ctx.Err() != nil {
				return false, true
			}
			out.Took = time.Since(began)
			c.done(out)
		} else if c.failed.Of(f) { // the failed scope has no frontends any more
			c.done(out)
		}
		c.finish(f, out.Err != nil)
		failed = failed || out.Err != nil
	}
	return failed, false
}

// finish records the result of a pass. A failed scope waits again.
func (c *Cleaner) finish(f ir.Family, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if failed {
		*c.waiting.At(f) = c.waiting.Of(f).union(c.running.Of(f))
	}
	*c.running.At(f), *c.failed.At(f) = nil, failed
}

// stillStale returns a function that selects the entries that are stale by the rules now in force.
// It waits until those are known.
func (c *Cleaner) stillStale(ctx context.Context, sel *Selector) func([]Stale) ([]Stale, error) {
	return func(stale []Stale) ([]Stale, error) {
		if err := c.waitSettled(ctx); err != nil {
			return nil, err
		}
		return slices.DeleteFunc(stale, func(s Stale) bool {
			_, ok := sel.Stale(s.Entry)
			return !ok
		}), nil
	}
}

// waitSettled waits until no commit is in progress.
func (c *Cleaner) waitSettled(ctx context.Context) error {
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

package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// comparison is a reading of the kernel that runs concurrently with Changes. Its result is valid as
// long as it is the Writer's: a Replace or a failed Change ends the State for which it began. The
// methods that record do nothing for nil.
type comparison struct {
	began  time.Time
	doubts uint64          // number of doubts when it began
	wrote  map[string]bool // objects that Changes wrote since it began, and stuck ones

	plan     apply.Plan   // difference from the kernel's content to the applied Programs
	err      error        // of the reading
	programs ir.Programs  // applied at the end of the reading
	changes  []ir.Changes // applied since it began, in order; programs may contain some of them
}

// compare begins to read the kernel. Changes do not wait for it, since reading the rules of a whole
// cluster takes long.
func (r *Reconciler) compare(ctx context.Context, doubts uint64) {
	c := &comparison{began: r.Now(), doubts: doubts, wrote: apply.StuckObjects(r.stuck)}
	running := make(chan *comparison, 1)
	r.comparison, r.running = c, running
	go func() {
		// The reading, the applied Programs or both contain a Change that is running now. repair
		// excludes what it wrote.
		if c.plan, c.err = r.Dataplane.Compare(ctx); c.err == nil {
			// In this goroutine, since Changes wait for work after a comparison.
			c.programs = r.Dataplane.Applied().Programs()
			r.trim()
		}
		running <- c
	}()
}

// recordWrites records the objects that a Plan writes.
func (c *comparison) recordWrites(plan apply.Plan) {
	if c == nil {
		return
	}
	for op := range plan.Operations {
		c.wrote[op.Object] = true
	}
}

// recordChanges records applied Changes.
func (c *comparison) recordChanges(changes ir.Changes) {
	if c != nil {
		c.changes = append(c.changes, changes)
	}
}

// inForce returns the Programs that are applied now. Its cost is proportional to the recorded
// changes.
func (c *comparison) inForce() ir.Programs {
	for _, changes := range c.changes {
		for f, of := range changes.All() {
			p := c.programs.Of(f)
			if p == nil {
				continue
			}
			for _, one := range of {
				at, found := p.Find(one.Name)
				switch {
				case one.New != nil && found:
					p.Services[at] = *one.New
				case one.New != nil:
					p.Services = slices.Insert(p.Services, at, *one.New)
				case found:
					p.Services = slices.Delete(p.Services, at, at+1)
				}
			}
		}
	}
	return c.programs
}

// errReplace is returned if a repair is not possible concurrently with Changes.
var errReplace = errors.New("the rules must be compared again without concurrent changes")

// remaining returns the differences that the comparison found, except on objects that Changes wrote
// since it began. It returns false if these cannot be separated.
func (c *comparison) remaining() (apply.Plan, bool) {
	if c.plan.Empty() || len(c.wrote) == 0 {
		return c.plan, true
	}
	return c.plan.Without(c.wrote)
}

// finish repairs the differences of a comparison that has ended.
func (r *Reconciler) finish(ctx context.Context, c *comparison) {
	r.running = nil
	if r.comparison != c {
		return
	}
	r.comparison = nil
	s := &Sync{Kind: Full, Began: c.began, Err: c.err}
	if c.err != nil {
		s.Ended = r.Now()
		r.state.Err = c.err
		r.state.doubt(s.Ended)
		r.next.comparing.fail(&r.Schedule, s.Ended)
		r.end(ctx, s)
		return
	}
	plan, ok := c.remaining()
	if found := !ok || !plan.Empty(); found && r.state.Doubts == c.doubts {
		r.state.doubt(r.Now()) // until the repair, which clears it
		c.doubts = r.state.Doubts
		r.report()
	}
	// A foreign edit of an excluded object may be later than the Change that wrote it. The comparison may
	// have read it already, so that no other one does.
	edited := (r.state.Doubts != c.doubts || len(r.Drift) > 0) && ok && apply.Total(plan) != apply.Total(c.plan)
	s.Done, s.Err = Done{}, errReplace
	if ok && !edited {
		s.Done, s.Err = r.repair(ctx, plan, c)
	}
	if errors.Is(s.Err, errReplace) {
		r.next.replace, r.state.Known = true, r.known
		r.state.doubt(r.Now())
		s.Incomplete = true
		r.repairs.addRepeated(&s.Done)
		r.Synced(s)
		r.report()
		return
	}
	if s.Err == nil {
		s.Work.Programs = c.inForce()
	}
	r.settle(s, r.state.Applied, &c.doubts)
	r.end(ctx, s)
}

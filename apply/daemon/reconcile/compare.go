package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// comparison is a reading of the kernel while Changes go on. It counts as long as it is
// the Reconciler's: a Replace or a failed Change ends the State that it was begun for.
type comparison struct {
	began  time.Time
	doubts uint64          // raised before it began
	wrote  map[string]bool // objects that Changes wrote since it began

	plan     apply.Plan   // leads from the kernel's content to what was applied
	err      error        // of the reading
	programs ir.Programs  // applied at the end of the reading
	changes  []ir.Changes // applied since it began, in order; some may be in programs already
}

// compare begins to read the kernel. Changes do not wait for that: to read the rules of a
// whole cluster takes long.
func (r *Reconciler) compare(ctx context.Context, doubts uint64) {
	c := &comparison{began: r.Now(), doubts: doubts, wrote: map[string]bool{}}
	running := make(chan *comparison, 1)
	r.comparison, r.running = c, running
	go func() {
		// A Change under way is in what is read, or in what was applied, or in both. Repair
		// leaves out what it wrote.
		if c.plan, c.err = r.Dataplane.Compare(ctx); c.err == nil {
			// Here, as Changes wait for what is done after a comparison.
			c.programs = r.Dataplane.Applied().Programs()
			r.trim()
		}
		running <- c
	}()
}

// noteWrites enters what a Plan writes into the comparison under way.
func (r *Reconciler) noteWrites(plan apply.Plan) {
	if r.comparison == nil {
		return
	}
	for op := range plan.Operations {
		r.comparison.wrote[op.Object] = true
	}
}

// noteApplied enters Changes that are in force into the comparison under way.
func (r *Reconciler) noteApplied(changes ir.Changes) {
	if r.comparison != nil {
		r.comparison.changes = append(r.comparison.changes, changes)
	}
}

// inForce returns the Programs that are applied now. Its cost follows the
// changes that came beside the comparison.
func (c *comparison) inForce() ir.Programs {
	for _, changes := range c.changes {
		for f, of := range changes.All() {
			p := c.programs.Of(f)
			if p == nil {
				continue
			}
			for _, one := range of {
				at, found := slices.BinarySearchFunc(p.Services, one.Name, func(s ir.Service, n ir.Name) int { return s.Name.Compare(n) })
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

// finish acts on a comparison whose reading has ended.
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
		r.compares.fail(&r.Schedule, s.Ended)
		r.end(ctx, s)
		return
	}
	s.Done, s.Err = r.repair(ctx, c)
	if errors.Is(s.Err, errReplace) {
		r.replace = true
		r.state.doubt(r.Now())
		r.report()
		return
	}
	if s.Err == nil {
		s.Work.Programs = c.inForce()
	}
	r.settle(s, r.state.Applied, &c.doubts)
	r.end(ctx, s)
}

// errReplace ends a Repair that is not possible beside Changes.
var errReplace = errors.New("the rules must be compared again, with nothing beside that")

// repair commits what a comparison found, without what Changes wrote since it began.
func (r *Reconciler) repair(ctx context.Context, c *comparison) (done Done, err error) {
	done.Refused = r.allRefused()
	if c.plan.Empty() {
		return done, nil
	}
	plan := c.plan
	if len(c.wrote) > 0 {
		var ok bool
		if plan, ok = plan.Without(c.wrote); !ok {
			return done, errReplace
		}
	}
	done.drifted(plan, apply.ChangedBy(r.Dataplane))
	refused, err := r.commit(ctx, plan, &done)
	// A listing in which things come and go may lack what was there all along;
	// the kernel does not make it twice.
	if err == nil && len(refused) > 0 || err != nil && len(c.wrote) > 0 {
		err = errReplace
	}
	return done, err
}

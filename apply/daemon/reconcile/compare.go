package reconcile

import (
	"context"
	"errors"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// comparison is what a node has, held against what it should have, while
// changes go on.
type comparison struct {
	plan    apply.Plan      // what leads from one to the other
	touched map[string]bool // objects that changes have to do with since its beginning

	programs ir.Programs  // applied, some time after its beginning
	changes  []ir.Changes // applied since then, in order
	inexact  bool         // more than changes was applied
}

// errAgain ends a comparison that found something which only a Replace repairs.
var errAgain = errors.New("the rules must be compared again, with nothing beside that")

// begin begins a comparison. The function that it returns makes it, and may run
// on another goroutine while changes go on: to read the rules of a whole
// cluster takes long, and a change is not to wait for it. nil tells that there
// is nothing to compare with, or that there are Services to try again: both are
// for Replace.
func (r *Reconciler) begin() func(context.Context) (*comparison, error) {
	if !r.known || len(r.refused) > 0 {
		return nil
	}
	c := &comparison{touched: map[string]bool{}}
	r.comparing = c
	return func(ctx context.Context) (*comparison, error) {
		// A change under way is in what is read, or in what was applied, or in both:
		// what it has to do with is left out later.
		plan, err := r.Dataplane.Compare(ctx)
		if err != nil {
			return nil, err
		}
		// Here, as changes wait for what is done after a comparison.
		c.programs = r.Dataplane.Applied()
		r.trim()
		c.plan = plan
		return c, nil
	}
}

// note enters what a Plan has to do with into the comparison under way.
func (r *Reconciler) note(plan apply.Plan) {
	if r.comparing == nil {
		return
	}
	for op := range plan.Operations {
		r.comparing.touched[op.Object] = true
	}
}

// noteApplied enters changes that are in force, or, where they are nil, that
// others than were asked for may be.
func (r *Reconciler) noteApplied(changes *ir.Changes) {
	switch {
	case r.comparing == nil:
	case changes == nil:
		r.comparing.inexact = true
	default:
		r.comparing.changes = append(r.comparing.changes, *changes)
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

// repair makes the node have what the comparison missed in it. What was changed
// since its beginning is right: a commit said so.
func (r *Reconciler) repair(ctx context.Context, c *comparison) (done Done, err error) {
	current := r.comparing == c
	r.comparing = nil
	c.inexact = c.inexact || !current
	if !current || c.plan.Empty() { // a Replace has looked at everything meanwhile
		done.Refused = r.allRefused()
		return done, nil
	}
	plan := c.plan
	if len(c.touched) > 0 {
		var ok bool
		if plan, ok = plan.Without(c.touched); !ok {
			return done, errAgain
		}
	}
	done.drifted(plan, apply.ChangedBy(r.Dataplane))
	refused, err := r.commit(ctx, plan, &done)
	// A listing in which things come and go may lack what was there all along;
	// the kernel does not make it twice.
	if err == nil && len(refused) > 0 || err != nil && len(c.touched) > 0 {
		err = errAgain
	}
	if err != nil {
		return done, err
	}
	done.Refused = r.allRefused()
	return done, nil
}

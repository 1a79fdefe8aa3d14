package loop

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/proxyc/proxyc/apply"
)

// Comparison is what a kernel has, held against what it should have, while
// Changes went on.
type Comparison struct {
	plan    apply.Plan      // what leads from one to the other; nil: nothing
	touched map[string]bool // objects that Changes have to do with since its beginning
}

// errAgain tells that a comparison found something that only a Replace repairs.
var errAgain = errors.New("the rules must be compared again, with nothing beside that")

// Compare begins a comparison. The function that it gives makes it, and may run
// on another goroutine while Changes go on: to read the rules of a whole
// cluster takes long, and a change is not to wait for it. nil tells that there
// is nothing to compare with, or that there are Services to try again: both are
// for Replace.
func (p *Plane[R]) Compare() func(context.Context) (*Comparison, error) {
	if !p.known || len(p.refused) > 0 {
		return nil
	}
	c := &Comparison{touched: map[string]bool{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.comparing = c
	return func(ctx context.Context) (*Comparison, error) {
		found, err := p.Target.Read(ctx)
		if err != nil {
			return nil, err
		}
		// A Change under way is in what was found, or in force, or in both: what it
		// has to do with is left out later.
		if plan := p.Target.Plan(found, p.Memory.Lower(p.InForce())); !plan.Empty() {
			c.plan = plan
		}
		debug.FreeOSMemory()
		return c, nil
	}
}

// note enters what a plan has to do with into the comparison under way.
func (p *Plane[R]) note(plan apply.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.comparing == nil {
		return
	}
	for op := range plan.Operations {
		p.comparing.touched[op.Object] = true
	}
}

// Repair makes the kernel hold what the comparison missed in it. What was
// changed since its beginning is right: a commit said so.
func (p *Plane[R]) Repair(ctx context.Context, c *Comparison) (done Done, err error) {
	p.mu.Lock()
	current := p.comparing == c
	p.comparing = nil
	p.mu.Unlock()
	if !current || c.plan == nil { // a Replace has looked at everything meanwhile
		done.Refused = p.allRefused()
		return done, nil
	}
	plan := c.plan
	if len(c.touched) > 0 {
		partial, ok := plan.(apply.Partial)
		if ok {
			plan, ok = partial.Without(c.touched)
		}
		if !ok {
			return done, errAgain
		}
	}
	done.drifted(plan)
	refused, err := p.commit(ctx, plan, &done)
	if err == nil && len(refused) > 0 {
		err = errAgain
	}
	if err != nil {
		return done, err
	}
	p.known = true
	done.Refused = p.allRefused()
	return done, nil
}

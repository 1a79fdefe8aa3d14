package loop

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Memory lowers Programs, and remembers what the kernel was last given, so
// that a change of a few Services is planned from them alone.
type Memory[R any] interface {
	// Lower gives the state that the programs want.
	Lower(programs []*ir.Program) R
	// Remember notes that the kernel holds the programs.
	Remember(programs []*ir.Program)
	// Plan gives what leads from what is remembered to the programs, which differ
	// from it by changes, and remembers them.
	Plan(programs []*ir.Program, changes [Families][]ir.Change) apply.Plan
}

// Plane makes a Kernel of a Target. Services that the kernel refuses are left
// out until they change.
type Plane[R any] struct {
	Target apply.Target[R]
	Memory Memory[R]

	// inForce are the Programs that the kernel holds; nil where nobody knows.
	inForce []*ir.Program
	refused map[ir.Name]apply.Refusal
}

var _ Kernel = (*Plane[int])(nil)

// driftShown is how many operations of drift are told.
const driftShown = 20

// Replace reads what the kernel has, and makes it hold the programs.
func (p *Plane[R]) Replace(ctx context.Context, programs []*ir.Program) (Done, error) {
	found, err := p.Target.Read(ctx)
	if err != nil {
		p.inForce = nil
		return Done{}, err
	}
	done := p.drift(found)
	programs = p.admitted(programs)
	err = p.commit(ctx, programs, p.Target.Plan(found, p.Memory.Lower(programs)), &done)
	if p.inForce != nil {
		p.Memory.Remember(programs)
	}
	return done, err
}

// Change makes the kernel hold the programs. Nothing is read, unless nobody
// knows what the kernel has.
func (p *Plane[R]) Change(ctx context.Context, programs []*ir.Program, changes [Families][]ir.Change) (Done, error) {
	for _, of := range changes {
		for _, c := range of {
			delete(p.refused, c.Name)
		}
	}
	if p.inForce == nil {
		return p.Replace(ctx, programs)
	}
	programs = p.admitted(programs)
	var done Done
	err := p.commit(ctx, programs, p.Memory.Plan(programs, changes), &done)
	return done, err
}

// drift compares what was found with what should have been there.
func (p *Plane[R]) drift(found R) (done Done) {
	if p.inForce == nil {
		return done
	}
	plan := p.Target.Plan(found, p.Memory.Lower(p.inForce))
	if plan.Empty() {
		return done
	}
	_, done.Drift = apply.Summary(plan)
	for op := range plan.Operations {
		if done.DriftFirst = append(done.DriftFirst, op); len(done.DriftFirst) == driftShown {
			break
		}
	}
	return done
}

// commit carries a plan out that leads to the programs.
func (p *Plane[R]) commit(ctx context.Context, programs []*ir.Program, plan apply.Plan, done *Done) error {
	_, done.Operations = apply.Summary(plan)
	done.Gone = plan.Gone()
	p.inForce = nil
	if !plan.Empty() {
		err := p.Target.Commit(ctx, plan)
		if q, ok := errors.AsType[*apply.Quarantine](err); ok {
			p.refuse(q)
			done.Refused = p.allRefused()
			return nil // what was left out is in programs, so that nobody knows what there is
		}
		if err != nil {
			return err
		}
	}
	p.inForce = programs
	done.Refused = p.allRefused()
	return nil
}

func (p *Plane[R]) refuse(q *apply.Quarantine) {
	if p.refused == nil {
		p.refused = map[ir.Name]apply.Refusal{}
	}
	for _, r := range q.Refused {
		p.refused[r.Service] = r
	}
}

func (p *Plane[R]) allRefused() []apply.Refusal {
	return slices.SortedFunc(maps.Values(p.refused), func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
}

// admitted are the programs without the Services that the kernel refuses.
func (p *Plane[R]) admitted(programs []*ir.Program) []*ir.Program {
	if len(p.refused) == 0 {
		return programs
	}
	rest := make([]*ir.Program, len(programs))
	for i, program := range programs {
		r := *program
		r.Services = slices.DeleteFunc(slices.Clone(program.Services), func(s ir.Service) bool {
			_, refused := p.refused[s.Name]
			return refused
		})
		rest[i] = &r
	}
	return rest
}

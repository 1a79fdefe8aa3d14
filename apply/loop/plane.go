package loop

import (
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Memory lowers Programs, and remembers what the kernel was last given, so
// that a change of a few Services is planned from them alone.
type Memory[R any] interface {
	// Lower gives the state that the programs want.
	Lower(programs ir.Programs) R
	// Remember notes that the kernel holds the programs.
	Remember(programs ir.Programs)
	// Plan gives what leads from what is remembered to what differs from it by
	// changes, and remembers that. The programs come without their Services; a
	// change's Old is what the kernel holds.
	Plan(programs ir.Programs, changes ir.Changes) apply.Plan
}

// Plane makes a Kernel of a Target. Services that the kernel refuses are left
// out: of them there is nothing in the kernel until they are tried again, when
// they change and in each Replace.
type Plane[R any] struct {
	Target apply.Target[R]
	Memory Memory[R]

	refused map[ir.Name]refusal
	// known tells that the kernel holds what is held; if not, nobody knows what it has.
	known bool
	mu    sync.Mutex
	held  *held // what the kernel held when that was last known
	// comparing is the comparison under way; nil: none
	comparing *Comparison
}

// refusal is a Service that is left out, and what it wants to be.
type refusal struct {
	apply.Refusal
	wanted ir.PerFamily[*ir.Service]
}

var _ Kernel = (*Plane[int])(nil)

// driftShown is how many operations of drift are told.
const driftShown = 20

// Replace reads what the kernel has, and makes it hold the programs.
func (p *Plane[R]) Replace(ctx context.Context, programs ir.Programs) (done Done, err error) {
	p.mu.Lock()
	p.comparing = nil // this one sees all
	p.mu.Unlock()
	found, err := p.read(ctx)
	if err != nil {
		return done, err
	}
	done.drifted(p.drift(found))
	p.refused = nil
	err = p.settle(ctx, found, programs, &done)
	return done, err
}

// errUnknown ends a Change that must be a Replace.
var errUnknown = errors.New("what the kernel has is not known")

// Change changes Services, whatever the number of the others.
func (p *Plane[R]) Change(ctx context.Context, changes ir.Changes) (done Done, err error) {
	if !p.known {
		return done, errUnknown
	}
	changes = p.fromHeld(p.readmit(changes))
	plan := p.Memory.Plan(p.held.bare, changes)
	p.note(plan)
	refused, err := p.commit(ctx, plan, &done)
	if err != nil {
		return done, err
	}
	p.mu.Lock()
	p.held.change(changes)
	p.mu.Unlock()
	if len(refused) == 0 {
		p.known = true
		done.Refused = p.allRefused()
		return done, nil
	}
	// What was refused is as it was before, which may be wrong by now; and the
	// kernel may keep more for it than Memory knows.
	programs := p.InForce()
	p.refuse(refused, programs, &done)
	found, err := p.read(ctx)
	if err != nil {
		return done, err
	}
	err = p.settle(ctx, found, programs, &done)
	return done, err
}

// InForce gives the Programs that the kernel held when that was last known,
// without what it refuses. It may be called from any goroutine.
func (p *Plane[R]) InForce() ir.Programs {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return ir.Programs{}
	}
	return p.held.programs()
}

func (p *Plane[R]) read(ctx context.Context) (R, error) {
	found, err := p.Target.Read(ctx)
	p.known = p.known && err == nil
	return found, err
}

// settle leads from what was found to the programs, without the Services that
// the kernel refuses. Each turn but the last finds more of these.
func (p *Plane[R]) settle(ctx context.Context, found R, programs ir.Programs, done *Done) error {
	for {
		admitted := p.admitted(programs)
		plan := p.Target.Plan(found, p.Memory.Lower(admitted))
		// To plan for a whole cluster leaves much garbage, just when the tools and
		// the kernel need memory, too.
		debug.FreeOSMemory()
		refused, err := p.commit(ctx, plan, done)
		if err != nil {
			return err
		}
		if len(refused) == 0 {
			p.hold(admitted)
			debug.FreeOSMemory() // what it took to remember all, and the plan
			done.Refused = p.allRefused()
			return nil
		}
		p.refuse(refused, programs, done)
		if found, err = p.read(ctx); err != nil {
			return err
		}
	}
}

func (p *Plane[R]) hold(programs ir.Programs) {
	p.Memory.Remember(programs)
	p.known = true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = newHeld(programs)
}

// drift gives what leads from what was found to what should have been there.
func (p *Plane[R]) drift(found R) apply.Plan {
	if !p.known {
		return nil
	}
	return p.Target.Plan(found, p.Memory.Lower(p.InForce()))
}

// drifted notes the operations that repair what somebody else did.
func (d *Done) drifted(plan apply.Plan) {
	if plan == nil || plan.Empty() {
		return
	}
	_, d.Drift = apply.Summary(plan)
	for op := range plan.Operations {
		if d.DriftFirst = append(d.DriftFirst, op); len(d.DriftFirst) == driftShown {
			return
		}
	}
}

// carried notes what a plan did, and what it had to leave.
func (d *Done) carried(plan apply.Plan) {
	var c Carried
	for op := range plan.Operations {
		d.Operations.Add(op.Verb)
		if len(c.First) < OperationsShown {
			c.First = append(c.First, op)
		}
	}
	if tabled, ok := plan.(apply.Tabled); ok {
		c.Tables = tabled.Tables()
	}
	if cleaning, ok := plan.(apply.Cleaning); ok {
		for _, f := range ir.Families() {
			*c.Kept.At(f) = cleaning.Kept(f)
		}
	}
	d.Plans = append(d.Plans, c)
	d.Gone = append(d.Gone, plan.Gone()...)
}

// commit carries a plan out, and gives the Services that the kernel refused
// newly. What it has is not known after that, unless there are none.
func (p *Plane[R]) commit(ctx context.Context, plan apply.Plan, done *Done) ([]apply.Refusal, error) {
	p.known = false
	var err error
	if !plan.Empty() {
		err = p.Target.Commit(ctx, plan)
	}
	done.carried(plan) // now: to name each operation takes time, which packets need not wait for
	if q, ok := errors.AsType[*apply.Quarantine](err); ok {
		return q.Refused, nil
	}
	return nil, err
}

// refuse leaves Services of the programs out from now on.
func (p *Plane[R]) refuse(refused []apply.Refusal, programs ir.Programs, done *Done) {
	done.RefusedNow = append(done.RefusedNow, refused...)
	if p.refused == nil {
		p.refused = map[ir.Name]refusal{}
	}
	for _, one := range refused {
		r := refusal{Refusal: one}
		for f, program := range ir.Present(programs) {
			if j, ok := slices.BinarySearchFunc(program.Services, one.Service, func(s ir.Service, n ir.Name) int { return s.Name.Compare(n) }); ok {
				*r.wanted.At(f) = &program.Services[j]
			}
		}
		p.refused[one.Service] = r
	}
}

// readmit tries the refused ones among the Services that changed again, in
// both families.
func (p *Plane[R]) readmit(changes ir.Changes) ir.Changes {
	if len(p.refused) == 0 {
		return changes
	}
	again := map[ir.Name]refusal{}
	for _, of := range changes.All() {
		for _, c := range of {
			if r, ok := p.refused[c.Name]; ok {
				again[c.Name] = r
			}
		}
	}
	for name, r := range again {
		delete(p.refused, name)
		for f, svc := range ir.Present(r.wanted) {
			if of := changes.At(f); !slices.ContainsFunc(*of, func(c ir.Change) bool { return c.Name == name }) {
				*of = append(slices.Clip(*of), ir.Change{Name: name, New: svc})
			}
		}
	}
	return changes
}

// fromHeld gives the changes as they are for the kernel, which has nothing of
// Services that it refused.
func (p *Plane[R]) fromHeld(changes ir.Changes) ir.Changes {
	var held ir.Changes
	for f, of := range changes.All() {
		services := p.held.services.Of(f)
		for _, c := range of {
			*held.At(f) = append(held.Of(f), ir.Change{Name: c.Name, Old: services[c.Name], New: c.New})
		}
	}
	return held
}

func (p *Plane[R]) allRefused() []apply.Refusal {
	all := make([]apply.Refusal, 0, len(p.refused))
	for r := range maps.Values(p.refused) {
		all = append(all, r.Refusal)
	}
	slices.SortFunc(all, func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
	return all
}

// admitted are the programs without the Services that the kernel refuses.
func (p *Plane[R]) admitted(programs ir.Programs) ir.Programs {
	if len(p.refused) == 0 {
		return programs
	}
	var rest ir.Programs
	for f, program := range ir.Present(programs) {
		r := *program
		r.Services = slices.DeleteFunc(slices.Clone(program.Services), func(s ir.Service) bool {
			_, refused := p.refused[s.Name]
			return refused
		})
		*rest.At(f) = &r
	}
	return rest
}

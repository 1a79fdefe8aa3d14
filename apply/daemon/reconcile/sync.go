package reconcile

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// refusal is a Service that is left out, and what it wants to be.
type refusal struct {
	apply.Refusal
	wanted ir.PerFamily[*ir.Service]
}

// driftShown is how many operations of drift are told.
const driftShown = 20

// Replace reads what the node has, and makes it have the Programs.
func (r *Reconciler) Replace(ctx context.Context, programs ir.Programs) (done Done, err error) {
	known, has := r.state.Known, programs
	if known {
		has = r.Dataplane.Applied().Programs()
	}
	if err := r.Dataplane.Read(ctx, has); err != nil {
		return done, err
	}
	if known {
		done.drifted(r.Dataplane.Plan(has), apply.ChangedBy(r.Dataplane))
	}
	r.refused = nil
	err = r.converge(ctx, programs, &done)
	return done, err
}

// Change changes Services, whatever the number of the others.
func (r *Reconciler) Change(ctx context.Context, changes ir.Changes) (done Done, err error) {
	changes = r.readmit(changes)
	plan := r.Dataplane.PlanChanges(r.Dataplane.Applied().From(changes))
	r.noteWrites(plan)
	refused, err := r.commit(ctx, plan, &done)
	if err != nil {
		return done, err
	}
	if len(refused) == 0 {
		r.noteApplied(changes)
		done.Refused = r.allRefused()
		return done, nil
	}
	r.comparison = nil // below, everything is read
	// What was refused is as it was before, which may be wrong by now; and the
	// kernel may have more for it than is remembered.
	var wanted apply.Applied
	wanted.Replace(r.Dataplane.Applied().Programs())
	wanted.Change(changes)
	programs := wanted.Programs()
	r.refuse(refused, programs, &done)
	if err := r.Dataplane.Read(ctx, apply.Without(programs, r.allRefused())); err != nil {
		return done, err
	}
	err = r.converge(ctx, programs, &done)
	return done, err
}

// converge leads from what was read to the Programs, without the Services that the
// kernel refuses.
func (r *Reconciler) converge(ctx context.Context, programs ir.Programs, done *Done) error {
	want := apply.Without(programs, r.allRefused())
	err := apply.Converge(ctx, r.Dataplane, want, r.Dataplane.Plan(want), func(plan apply.Plan) ([]apply.Refusal, error) {
		r.trim() // to plan for a whole cluster leaves much
		refused, err := r.commit(ctx, plan, done)
		r.refuse(refused, programs, done)
		return refused, err
	})
	if err != nil {
		return err
	}
	r.trim()
	r.Dataplane.PlanChanges(ir.Changes{}) // so that the first change finds ready what it is planned from
	r.trim()
	done.Refused = r.allRefused()
	return nil
}

func (r *Reconciler) trim() {
	if r.Trim != nil {
		r.Trim()
	}
}

// drifted notes the operations that repair what somebody else did, and who that was.
func (d *Done) drifted(plan apply.Plan, by []string) {
	if plan.Empty() {
		return
	}
	d.DriftBy = by
	d.Drift = apply.Total(plan)
	gone := apply.GoneIn(plan)
	for _, g := range gone {
		d.DriftGone = append(d.DriftGone, g.What)
	}
	told := func(op apply.Operation) bool {
		return slices.ContainsFunc(gone, func(g apply.Gone) bool { return strings.HasPrefix(op.Object, g.Within) })
	}
	for op := range plan.Differences {
		if told(op) {
			continue
		}
		if d.DriftFirst = append(d.DriftFirst, op); len(d.DriftFirst) == driftShown {
			break
		}
	}
	d.DriftMore = -len(d.DriftFirst)
	for op := range plan.Operations { // which costs less, as it tells no rules
		if !told(op) {
			d.DriftMore++
		}
	}
}

// carried notes what a Plan did.
func (d *Done) carried(plan apply.Plan, result apply.Result) {
	first, total := apply.First(plan, OperationsShown)
	d.Operations.Added += total.Added
	d.Operations.Changed += total.Changed
	d.Operations.Removed += total.Removed
	d.Commits = append(d.Commits, Commit{First: first, Result: result})
	d.Removed = append(d.Removed, plan.RemovedFrontends()...)
}

// commit carries a Plan out, and returns the Services that the kernel refused
// newly. What it has is not known after that, unless there are none.
func (r *Reconciler) commit(ctx context.Context, plan apply.Plan, done *Done) ([]apply.Refusal, error) {
	if r.Committing != nil {
		r.Committing()
	}
	result, err := r.Dataplane.Commit(ctx, plan)
	r.state.Known = err == nil && len(result.Refused) == 0
	done.carried(plan, result) // now: to name each operation takes time, which packets need not wait for
	if err != nil {
		done.RefusedNow = append(done.RefusedNow, result.Refused...)
		return nil, err
	}
	return result.Refused, nil
}

// refuse leaves Services of the programs out from now on.
func (r *Reconciler) refuse(refused []apply.Refusal, programs ir.Programs, done *Done) {
	done.RefusedNow = append(done.RefusedNow, refused...)
	if r.refused == nil {
		r.refused = map[ir.Name]refusal{}
	}
	for _, one := range refused {
		left := refusal{Refusal: one}
		for f, program := range ir.Present(programs) {
			if j, ok := slices.BinarySearchFunc(program.Services, one.Service, func(s ir.Service, n ir.Name) int { return s.Name.Compare(n) }); ok {
				*left.wanted.At(f) = &program.Services[j]
			}
		}
		r.refused[one.Service] = left
	}
}

// readmit tries the refused ones among the Services that changed again, in
// both families.
func (r *Reconciler) readmit(changes ir.Changes) ir.Changes {
	if len(r.refused) == 0 {
		return changes
	}
	again := map[ir.Name]refusal{}
	for _, of := range changes.All() {
		for _, c := range of {
			if left, ok := r.refused[c.Name]; ok {
				again[c.Name] = left
			}
		}
	}
	for name, left := range again {
		delete(r.refused, name)
		for f, svc := range ir.Present(left.wanted) {
			if of := changes.At(f); !slices.ContainsFunc(*of, func(c ir.Change) bool { return c.Name == name }) {
				*of = append(slices.Clip(*of), ir.Change{Name: name, New: svc})
			}
		}
	}
	return changes
}

func (r *Reconciler) allRefused() []apply.Refusal {
	all := make([]apply.Refusal, 0, len(r.refused))
	for left := range maps.Values(r.refused) {
		all = append(all, left.Refusal)
	}
	slices.SortFunc(all, func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
	return all
}

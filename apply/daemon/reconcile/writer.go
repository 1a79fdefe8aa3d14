package reconcile

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Writer writes Programs through a Dataplane. It excludes Services that the kernel refuses.
type Writer struct {
	Dataplane apply.Dataplane
	// Committing, if set, is called before each commit. Until a sync has succeeded after it, the
	// kernel's content is unknown.
	Committing func()
	// Trim, if set, is called when much garbage is left, just before the tools and the kernel need
	// memory, too.
	Trim func()

	known           bool // the kernel's content is what the Dataplane last applied
	compared        bool // the kernel was compared after the last commit
	refused         map[ir.Name]refusal
	refusedRemovals []apply.Refusal // after the last commit
}

// refusal is a refused Service with its desired version.
type refusal struct {
	apply.Refusal
	wanted ir.PerFamily[*ir.Service]
}

// CommitGrace is how long a commit in progress may continue after its context ends. If it ended at
// once, it could be in force although it failed.
const CommitGrace = 400 * time.Millisecond

// driftShown is the maximum number of drift operations in DriftFirst.
const driftShown = 20

// Compare reads the kernel, and records the foreign changes in done. It reports whether the kernel
// contains what was last applied.
func (w *Writer) Compare(ctx context.Context, read func(context.Context, ir.Programs) error, done *Done) (same bool, err error) {
	applied := w.Dataplane.Applied().Programs()
	if err := read(ctx, applied); err != nil {
		return false, err
	}
	plan := w.Dataplane.Plan(applied)
	done.recordDrift(plan, apply.RefusedObjects(w.refusedRemovals), apply.ChangedBy(w.Dataplane))
	w.compared = true
	w.trim() // reading a whole cluster leaves much garbage
	return plan.Empty(), nil
}

// Replace commits the difference from the kernel to the Programs. It reads the kernel first, unless
// Compare just did.
func (w *Writer) Replace(ctx context.Context, programs ir.Programs) (done Done, err error) {
	switch {
	case w.compared:
	case w.known:
		_, err = w.Compare(ctx, w.Dataplane.Read, &done)
	default:
		err = w.Dataplane.Read(ctx, programs)
	}
	if err != nil {
		return done, err
	}
	w.refused = nil
	err = w.converge(ctx, programs, nil, &done)
	return done, err
}

// Change commits changes of Services. It adds the changes of readmitted Services to them. Its cost does
// not depend on the number of other Services.
func (w *Writer) Change(ctx context.Context, changes *ir.Changes) (done Done, err error) {
	*changes = w.readmit(*changes)
	plan := w.Dataplane.PlanChanges(w.Dataplane.Applied().From(*changes))
	refused, err := w.commit(ctx, plan, &done)
	if err != nil {
		return done, err
	}
	if len(refused) == 0 {
		done.Refused = w.allRefused()
		return done, nil
	}
	// Refused Services still have their previous rules, which may be wrong. The kernel may also contain
	// rules of them that the Dataplane does not remember.
	var wanted apply.Applied
	wanted.Replace(w.Dataplane.Applied().Programs())
	wanted.Change(*changes)
	programs := wanted.Programs()
	refused = append(w.allRefused(), refused...)
	if err := apply.SharedCause(programs, refused); err != nil {
		return done, err
	}
	if err := w.Dataplane.Read(ctx, apply.Without(programs, refused)); err != nil {
		return done, err
	}
	err = w.converge(ctx, programs, refused, &done)
	return done, err
}

// converge commits the difference between the kernel, as last read, and the Programs without refused
// Services, and excludes these.
func (w *Writer) converge(ctx context.Context, programs ir.Programs, refused []apply.Refusal, done *Done) error {
	plan := w.Dataplane.Plan(apply.Without(programs, refused))
	refused, err := apply.Converge(ctx, w.Dataplane, programs, refused, plan, func(plan apply.Plan) ([]apply.Refusal, error) {
		w.trim() // planning for a whole cluster leaves much garbage
		return w.commit(ctx, plan, done)
	})
	if err != nil {
		return err
	}
	w.exclude(refused, programs, done)
	w.trim()
	w.Dataplane.PlanChanges(ir.Changes{}) // so that the first change does not have to prepare the state for planning
	w.trim()
	done.Refused = w.allRefused()
	return nil
}

func (w *Writer) trim() {
	if w.Trim != nil {
		w.Trim()
	}
}

// commit commits a Plan, and returns newly refused Services. Unless there are none, the kernel's
// content is unknown afterwards.
func (w *Writer) commit(ctx context.Context, plan apply.Plan, done *Done) ([]apply.Refusal, error) {
	if err := ctx.Err(); err != nil { // nothing is written, so the content stays known
		return nil, err
	}
	if w.Committing != nil {
		w.Committing()
	}
	ctx, cancel := outlasting(ctx, CommitGrace)
	defer cancel()
	w.compared = false
	result, err := w.Dataplane.Commit(ctx, plan)
	w.known = err == nil && len(result.Refused) == 0
	if w.known {
		w.refusedRemovals = result.RefusedRemovals
	}
	done.recordCommit(plan, result) // after the commit: naming the operations takes time, and packets need not wait
	return result.Refused, err
}

// outlasting returns a context that ends a time after ctx.
func outlasting(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return longer, func() { stop(); cancel() }
}

// exclude excludes refused Services of the programs from further syncs.
func (w *Writer) exclude(refused []apply.Refusal, programs ir.Programs, done *Done) {
	for _, one := range refused {
		if _, known := w.refused[one.Service]; known {
			continue
		}
		done.RefusedNow = append(done.RefusedNow, one)
		left := refusal{Refusal: one}
		for f, program := range ir.Present(programs) {
			if j, ok := program.Find(one.Service); ok {
				*left.wanted.At(f) = &program.Services[j]
			}
		}
		ir.SetIn(&w.refused, one.Service, left)
	}
}

// readmit includes changed Services again, in both families. It returns the changes with the
// versions of the unchanged family.
func (w *Writer) readmit(changes ir.Changes) ir.Changes {
	if len(w.refused) == 0 {
		return changes
	}
	again := map[ir.Name]refusal{}
	for _, of := range changes.All() {
		for _, c := range of {
			if left, ok := w.refused[c.Name]; ok {
				again[c.Name] = left
			}
		}
	}
	for name, left := range again {
		delete(w.refused, name)
		for f, svc := range ir.Present(left.wanted) {
			if of := changes.At(f); !slices.ContainsFunc(*of, func(c ir.Change) bool { return c.Name == name }) {
				*of = append(slices.Clip(*of), ir.Change{Name: name, New: svc})
			}
		}
	}
	return changes
}

// allRefused returns the refused Services, by name.
func (w *Writer) allRefused() []apply.Refusal {
	all := make([]apply.Refusal, 0, len(w.refused))
	for left := range maps.Values(w.refused) {
		all = append(all, left.Refusal)
	}
	slices.SortFunc(all, func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
	return all
}

// recordDrift records the operations that repair foreign changes, and the programs that made these.
// Refused objects are no foreign changes.
func (d *Done) recordDrift(plan apply.Plan, refused map[string]bool, by []string) {
	gone := apply.GoneIn(plan)
	within := func(op apply.Operation) bool {
		return slices.ContainsFunc(gone, func(g apply.Gone) bool { return strings.HasPrefix(op.Object, g.Within) })
	}
	for op := range plan.Operations { // cheaper than Differences, since it formats no rules
		if refused[op.Object] {
			continue
		}
		if d.Drift.Add(op.Verb); !within(op) {
			d.DriftMore++
		}
	}
	if d.Drift.Total() == 0 {
		return
	}
	d.DriftBy = by
	for _, g := range gone {
		d.DriftGone = append(d.DriftGone, g.What)
	}
	for op := range plan.Differences {
		if refused[op.Object] || within(op) {
			continue
		}
		if d.DriftFirst = append(d.DriftFirst, op); len(d.DriftFirst) == driftShown {
			break
		}
	}
	d.DriftMore -= len(d.DriftFirst)
}

// recordCommit records the operations of a committed Plan. There are none if Services were refused.
func (d *Done) recordCommit(plan apply.Plan, result apply.Result) {
	d.Removed = append(d.Removed, plan.RemovedFrontends()...)
	if len(result.Refused) > 0 {
		d.Commits = append(d.Commits, Commit{Result: result})
		return
	}
	first, total := apply.First(plan, OperationsShown)
	d.Operations.Sum(total)
	d.Commits = append(d.Commits, Commit{First: first, Result: result})
}

// addDrift adds the drift that an earlier sync found.
func (d *Done) addDrift(earlier *Done) {
	d.Drift.Sum(earlier.Drift)
	d.DriftGone = union(earlier.DriftGone, d.DriftGone)
	d.DriftBy = union(earlier.DriftBy, d.DriftBy)
	all := slices.Concat(earlier.DriftFirst, d.DriftFirst)
	d.DriftFirst = all[:min(driftShown, len(all))]
	d.DriftMore += earlier.DriftMore + len(all) - len(d.DriftFirst)
}

func (d *Done) clearDrift() {
	d.Drift, d.DriftGone, d.DriftFirst, d.DriftMore, d.DriftBy = apply.Count{}, nil, nil, 0, nil
}

// union returns the texts of both lists, without duplicates.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// rules are what a fake holds: for each Service its port.
type rules map[ir.Name]uint16

// fake is a Dataplane whose kernel refuses port 666 and leaves the Service as it
// is then, and which fails when asked to.
type fake struct {
	mu    sync.Mutex // held while the kernel works: a reading may run beside commits
	rules rules
	fail  error // of the next Read or Commit
	// fails has all of them fail, and readFails each Read.
	fails, readFails bool
	commitFails      bool
	accepts          bool // port 666, too
	reads, commits   int
	sticks           bool // port 777 cannot be removed
	stuck            map[ir.Name]bool

	found   rules
	applied apply.Applied
}

type fakePlan struct {
	have, want rules
	programs   ir.Programs // zero: changes
	changes    ir.Changes
	part       bool // of a plan: names some rules only
}

func (d *fake) failure() error {
	err := d.fail
	d.fail = nil
	if d.fails {
		return errBusy
	}
	return err
}

func (d *fake) Read(context.Context, ir.Programs) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	d.found = maps.Clone(d.rules)
	if d.readFails {
		return errBusy
	}
	return d.failure()
}

// concurrent is a fake whose readings run beside changes. Each takes until there is a token in slow;
// nil: no time.
type concurrent struct {
	*fake
	slow chan struct{}
}

func (c *concurrent) ReadConcurrently(ctx context.Context) (use func(), err error) {
	c.mu.Lock()
	c.reads++
	found, err := maps.Clone(c.rules), c.failure()
	c.mu.Unlock()
	if c.slow != nil {
		select {
		case <-c.slow:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if c.readFails {
		err = errBusy
	}
	return func() { c.found = found }, err
}

func (d *fake) Plan(want ir.Programs) apply.Plan {
	return &fakePlan{have: d.found, want: lower(want), programs: want}
}

func (d *fake) PlanChanges(changes ir.Changes) apply.Plan {
	p := &fakePlan{have: rules{}, want: rules{}, changes: changes, part: true}
	has := lower(d.applied.Programs())
	for _, c := range changes.IPv4 {
		if port, ok := has[c.Name]; ok {
			p.have[c.Name] = port
		}
		if c.New != nil {
			p.want[c.Name] = c.New.Frontends[0].Match.Port
		}
	}
	return p
}

func (d *fake) Commit(_ context.Context, p apply.Plan) (result apply.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	plan := p.(*fakePlan)
	if !plan.Empty() {
		d.commits++
	}
	if err := d.failure(); err != nil {
		return result, err
	}
	if d.commitFails {
		return result, errBusy
	}
	have, want := maps.Clone(plan.have), maps.Clone(plan.want)
	if plan.part {
		for name, port := range d.rules {
			if _, of := have[name]; !of && want[name] == 0 {
				have[name], want[name] = port, port
			}
		}
	}
	if !maps.Equal(d.rules, have) {
		return result, errors.New("the plan is from another state")
	}
	before := d.rules
	d.rules = rules{}
	for name, port := range want {
		if port == 666 && !d.accepts {
			result.Refused = append(result.Refused, apply.Refusal{Service: name, Reason: errors.New("no")})
			if port = before[name]; port == 0 {
				continue
			}
		}
		d.rules[name] = port
	}
	d.keepStuck(before, want, &result)
	switch {
	case len(result.Refused) > 0:
	case plan.programs.IPv4 != nil:
		d.applied.Replace(plan.programs)
	default:
		d.applied.Change(plan.changes)
	}
	return result, nil
}

// keepStuck keeps removed rules of port 777 while they stick.
func (d *fake) keepStuck(before, want rules, result *apply.Result) {
	for name, port := range before {
		if _, ok := want[name]; !ok && port == 777 {
			d.stuck[name] = true
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(d.stuck), ir.Name.Compare) {
		if d.sticks {
			d.rules[name] = 777
			result.RefusedRemovals = append(result.RefusedRemovals, apply.Refusal{Object: name.String(), Service: name, Reason: errors.New("no")})
		} else {
			delete(d.rules, name)
			delete(d.stuck, name)
		}
	}
}

func (d *fake) Applied() *apply.Applied                        { return &d.applied }
func (d *fake) Drift(context.Context) (<-chan struct{}, error) { return nil, nil }
func (d *fake) Close() error                                   { return nil }

func (p *fakePlan) Empty() bool { return maps.Equal(p.have, p.want) }

func (p *fakePlan) Differences(yield func(apply.Operation) bool) { p.Operations(yield) }

func (p *fakePlan) Operations(yield func(apply.Operation) bool) {
	names := maps.Clone(p.have)
	maps.Copy(names, p.want)
	for _, name := range slices.SortedFunc(maps.Keys(names), ir.Name.Compare) {
		have, old := p.have[name]
		want, stays := p.want[name]
		verb := apply.Change
		switch {
		case have == want:
			continue
		case !old:
			verb = apply.Add
		case !stays:
			verb = apply.Remove
		}
		if !yield(apply.Operation{Verb: verb, Service: name, Object: name.String()}) {
			return
		}
	}
}

func (p *fakePlan) RemovedFrontends() (removed []ir.Match) {
	for name, port := range p.have {
		if p.want[name] == 0 {
			removed = append(removed, ir.Match{Port: port})
		}
	}
	return removed
}

// lower makes of each Service its first port.
func lower(programs ir.Programs) rules {
	r := rules{}
	for _, p := range ir.Present(programs) {
		for _, s := range p.Services {
			r[s.Name] = s.Frontends[0].Match.Port
		}
	}
	return r
}

func svc(name string, port uint16) ir.Service {
	return ir.Service{Name: ir.Name{Namespace: "ns", Name: name}, Frontends: []ir.Frontend{{Match: ir.Match{Port: port}}}}
}

// want are Programs of the Services.
func want(services ...ir.Service) ir.Programs {
	return ir.NewPrograms(&ir.Program{Family: ir.IPv4, Services: services}, &ir.Program{Family: ir.IPv6})
}

// from returns what leads from one state to another.
func from(a, b ir.Programs) (c ir.Changes) {
	c.IPv4 = ir.Diff(a.IPv4, b.IPv4)
	return c
}

func named(r rules) map[string]uint16 {
	out := map[string]uint16{}
	for n, p := range r {
		out[n.Name] = p
	}
	return out
}

func newWriter() (*fake, *Writer) {
	d := &fake{rules: rules{}, stuck: map[ir.Name]bool{}}
	return d, &Writer{Dataplane: d}
}

func TestSyncFollows(t *testing.T) {
	ctx := t.Context()
	dataplane, r := newWriter()
	a := want(svc("a", 1), svc("b", 2))
	if done, err := r.Replace(ctx, a); err != nil || done.Operations.Added != 2 || done.Drift != (apply.Count{}) {
		t.Fatalf("%+v, %v", done, err)
	}
	b := want(svc("a", 1), svc("b", 3), svc("c", 4))
	changes := from(a, b)
	done, err := r.Change(ctx, &changes)
	if err != nil || done.Operations != (apply.Count{Added: 1, Changed: 1}) {
		t.Fatalf("%+v, %v", done, err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 3, "c": 4}, named(dataplane.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
	if dataplane.reads != 1 {
		t.Errorf("the kernel was read %d times, want once", dataplane.reads)
	}
}

// A sync that ends before its commit leaves the kernel's content known.
func TestSyncEndsBeforeCommit(t *testing.T) {
	_, r := newWriter()
	if _, err := r.Replace(t.Context(), want(svc("a", 1))); err != nil {
		t.Fatal(err)
	}
	r.Committing = func() { t.Error("a commit began") }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	changes := from(want(svc("a", 1)), want(svc("a", 2)))
	if _, err := r.Change(ended, &changes); !errors.Is(err, context.Canceled) || !r.known {
		t.Errorf("%v, known %t", err, r.known)
	}
}

// slow is a Dataplane whose commits take a time, unless their context ends first.
type slow struct {
	*fake
	took time.Duration
}

func (s *slow) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	select {
	case <-time.After(s.took):
		return s.fake.Commit(ctx, p)
	case <-ctx.Done():
		return apply.Result{}, ctx.Err()
	}
}

// A commit in progress outlasts its sync, but not for long.
func TestSyncEndsDuringCommit(t *testing.T) {
	for _, tt := range []struct {
		took time.Duration
		err  error
	}{{CommitGrace / 2, nil}, {2 * CommitGrace, context.Canceled}} {
		synctest.Test(t, func(t *testing.T) {
			dataplane, r := newWriter()
			r.Dataplane = &slow{dataplane, tt.took}
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, nil)
			defer cancel()
			if _, err := r.Replace(ctx, want(svc("a", 1))); !errors.Is(err, tt.err) || r.known != (tt.err == nil) {
				t.Errorf("a commit of %s: %v, known %t, want %v", tt.took, err, r.known, tt.err)
			}
		})
	}
}

// A start with everything in place commits nothing.
func TestSyncAdopts(t *testing.T) {
	dataplane, r := newWriter()
	dataplane.rules[ir.Name{Namespace: "ns", Name: "a"}] = 1
	if _, err := r.Replace(t.Context(), want(svc("a", 1))); err != nil || dataplane.commits != 0 {
		t.Errorf("%d commits, %v, want none", dataplane.commits, err)
	}
}

func TestSyncRepairsDrift(t *testing.T) {
	dataplane, r := newWriter()
	a := want(svc("a", 1), svc("b", 2))
	r.Replace(t.Context(), a)
	dataplane.rules = rules{{Namespace: "ns", Name: "b"}: 9}
	done, err := r.Replace(t.Context(), a)
	if err != nil || done.Drift != (apply.Count{Added: 1, Changed: 1}) || len(done.DriftFirst) != 2 {
		t.Errorf("%+v, %v, want the drift of two Services", done, err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 2}, named(dataplane.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

// A Service that the kernel refuses has no rules, not even its old ones; the
// others go on at the cost of their own changes, and it comes back when it changes.
func TestSyncRefused(t *testing.T) {
	ctx := t.Context()
	dataplane, r := newWriter()
	last := want(svc("a", 1), svc("bad", 5))
	if _, err := r.Replace(ctx, last); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name       string
		want       ir.Programs
		full       bool
		shared     bool
		reads      int
		now, after []string
		inForce    map[string]uint16
	}{
		{"refused", want(svc("a", 1), svc("bad", 666)), false, false, 1, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 1}},
		{"another changes", want(svc("a", 2), svc("bad", 666)), false, false, 0, nil, []string{"bad"}, map[string]uint16{"a": 2}},
		{"all are refused", want(svc("a", 666), svc("bad", 666)), false, true, 0, nil, nil, map[string]uint16{"a": 2}},
		{"one is well", want(svc("a", 3), svc("bad", 666)), true, false, 2, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 3}},
		{"all are tried again", want(svc("a", 3), svc("bad", 666)), true, false, 2, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 3}},
		{"the other is well", want(svc("a", 3), svc("bad", 7)), false, false, 0, nil, nil, map[string]uint16{"a": 3, "bad": 7}},
		{"refused again", want(svc("a", 3), svc("bad", 666)), false, false, 1, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 3}},
		{"gone", want(svc("a", 3)), false, false, 0, nil, nil, map[string]uint16{"a": 3}},
	} {
		reads := dataplane.reads
		var done Done
		var err error
		if step.full {
			done, err = r.Replace(ctx, step.want)
		} else {
			changes := from(last, step.want)
			done, err = r.Change(ctx, &changes)
		}
		last = step.want
		if (err != nil) != step.shared || dataplane.reads-reads != step.reads || done.Drift != (apply.Count{}) {
			t.Errorf("%s: %v, %d reads, want %d; drift %v", step.name, err, dataplane.reads-reads, step.reads, done.Drift)
		}
		if diff := cmp.Diff(step.now, servicesOf(done.RefusedNow)); diff != "" {
			t.Errorf("%s: refused now (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.after, servicesOf(done.Refused)); diff != "" {
			t.Errorf("%s: left out (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.inForce, named(dataplane.rules)); diff != "" {
			t.Errorf("%s: in force (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.inForce, named(lower(dataplane.Applied().Programs()))); diff != "" {
			t.Errorf("%s: reported to be in force (-want +got):\n%s", step.name, diff)
		}
	}
}

func servicesOf(refused []apply.Refusal) (names []string) {
	for _, r := range refused {
		names = append(names, r.Service.Name)
	}
	return names
}

// A Service that changes in one family comes back in both.
func TestSyncReadmitsBothFamilies(t *testing.T) {
	_, r := newWriter()
	name := ir.Name{Namespace: "ns", Name: "bad"}
	v4, v6 := svc("bad", 666), svc("bad", 6)
	programs := want(v4)
	programs.IPv6.Services = []ir.Service{v6}
	if _, err := r.Replace(t.Context(), want()); err != nil {
		t.Fatal(err)
	}
	r.exclude([]apply.Refusal{{Service: name}}, programs, &Done{})
	better := svc("bad", 4)
	got := ir.Changes{IPv4: []ir.Change{{Name: name, New: &better}}}
	if _, err := r.Change(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.IPv6) != 1 || got.IPv6[0].New.Frontends[0].Match.Port != 6 || len(r.refused) != 0 {
		t.Errorf("%+v, want the Service as it is in the other family, too", got)
	}
}

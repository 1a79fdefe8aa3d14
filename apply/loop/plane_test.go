package loop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// rules is the state of a fakeTarget: for each Service its port.
type rules map[ir.Name]uint16

// fakeTarget is a kernel which refuses port 666, and fails when told to.
type fakeTarget struct {
	rules   rules
	fail    error // of the next Read or Commit
	reads   int
	commits int
}

type fakePlan struct{ have, want rules }

func (t *fakeTarget) failure() error {
	err := t.fail
	t.fail = nil
	return err
}

func (t *fakeTarget) Read(context.Context) (rules, error) {
	t.reads++
	return maps.Clone(t.rules), t.failure()
}

func (t *fakeTarget) Plan(have, want rules) apply.Plan { return &fakePlan{have, want} }

func (t *fakeTarget) Commit(_ context.Context, p apply.Plan) error {
	t.commits++
	if err := t.failure(); err != nil {
		return err
	}
	plan := p.(*fakePlan)
	if !maps.Equal(t.rules, plan.have) {
		return errors.New("the plan is from another state")
	}
	t.rules = rules{}
	q := &apply.Quarantine{}
	for name, port := range plan.want {
		if port == 666 {
			q.Refused = append(q.Refused, apply.Refusal{Service: name, Reason: errors.New("no")})
			continue
		}
		t.rules[name] = port
	}
	if len(q.Refused) > 0 {
		return q
	}
	return nil
}

func (p *fakePlan) Empty() bool { return maps.Equal(p.have, p.want) }

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

func (p *fakePlan) Gone() []ir.Match { return nil }

// fakeMemory lowers a Service to its first port.
type fakeMemory struct{ last rules }

func (fakeMemory) Lower(programs []*ir.Program) rules {
	r := rules{}
	for _, p := range programs {
		for _, s := range p.Services {
			r[s.Name] = s.Frontends[0].Match.Port
		}
	}
	return r
}

func (m *fakeMemory) Remember(programs []*ir.Program) { m.last = m.Lower(programs) }

func (m *fakeMemory) Plan(_ []*ir.Program, changes [Families][]ir.Change) apply.Plan {
	have, want := m.last, maps.Clone(m.last)
	for _, c := range changes[0] {
		delete(want, c.Name)
		if c.New != nil {
			want[c.Name] = c.New.Frontends[0].Match.Port
		}
	}
	m.last = want
	return &fakePlan{have, want}
}

func svc(name string, port uint16) ir.Service {
	return ir.Service{Name: ir.Name{Namespace: "ns", Name: name}, Frontends: []ir.Frontend{{Match: ir.Match{Port: port}}}}
}

// want are Programs of the Services.
func want(services ...ir.Service) []*ir.Program {
	return []*ir.Program{{Family: ir.IPv4, Services: services}, {Family: ir.IPv6}}
}

// from gives what leads from one state to another.
func from(a, b []*ir.Program) (c [Families][]ir.Change) {
	c[0] = ir.Diff(a[0], b[0])
	return c
}

func named(r rules) map[string]uint16 {
	out := map[string]uint16{}
	for n, p := range r {
		out[n.Name] = p
	}
	return out
}

func newPlane() (*fakeTarget, *Plane[rules]) {
	t := &fakeTarget{rules: rules{}}
	return t, &Plane[rules]{Target: t, Memory: &fakeMemory{}}
}

func TestPlaneFollows(t *testing.T) {
	ctx := t.Context()
	target, p := newPlane()
	a := want(svc("a", 1), svc("b", 2))
	if done, err := p.Replace(ctx, a); err != nil || done.Operations.Added != 2 || done.Drift != (apply.Count{}) {
		t.Fatalf("%+v, %v", done, err)
	}
	b := want(svc("a", 1), svc("b", 3), svc("c", 4))
	done, err := p.Change(ctx, b, from(a, b))
	if err != nil || done.Operations != (apply.Count{Added: 1, Changed: 1}) {
		t.Fatalf("%+v, %v", done, err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 3, "c": 4}, named(target.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
	if target.reads != 1 {
		t.Errorf("the kernel was read %d times, want once", target.reads)
	}
}

// A start with everything in place commits nothing.
func TestPlaneAdopts(t *testing.T) {
	target, p := newPlane()
	target.rules[ir.Name{Namespace: "ns", Name: "a"}] = 1
	if _, err := p.Replace(t.Context(), want(svc("a", 1))); err != nil || target.commits != 0 {
		t.Errorf("%d commits, %v, want none", target.commits, err)
	}
}

func TestPlaneRepairsDrift(t *testing.T) {
	target, p := newPlane()
	a := want(svc("a", 1), svc("b", 2))
	p.Replace(t.Context(), a)
	target.rules = rules{{Namespace: "ns", Name: "b"}: 9}
	done, err := p.Replace(t.Context(), a)
	if err != nil || done.Drift != (apply.Count{Added: 1, Changed: 1}) || len(done.DriftFirst) != 2 {
		t.Errorf("%+v, %v, want the drift of two Services", done, err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 1, "b": 2}, named(target.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

// After a commit that failed the kernel is read before anything is believed.
func TestPlaneReadsAfterFailure(t *testing.T) {
	target, p := newPlane()
	a, b := want(svc("a", 1)), want(svc("a", 2))
	p.Replace(t.Context(), a)
	target.fail = errors.New("busy")
	if _, err := p.Change(t.Context(), b, from(a, b)); err == nil {
		t.Fatal("the failure is not told")
	}
	c := want(svc("a", 3))
	if _, err := p.Change(t.Context(), c, from(b, c)); err != nil || target.reads != 2 {
		t.Errorf("%v after %d reads, want 2", err, target.reads)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 3}, named(target.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

func TestPlaneQuarantine(t *testing.T) {
	ctx := t.Context()
	target, p := newPlane()
	a := want(svc("a", 1), svc("bad", 666))
	done, err := p.Replace(ctx, a)
	if err != nil || len(done.Refused) != 1 || done.Refused[0].Service.Name != "bad" {
		t.Fatalf("%+v, %v, want ns/bad refused", done, err)
	}
	b := want(svc("a", 2), svc("bad", 666))
	commits := target.commits
	done, err = p.Change(ctx, b, from(a, b))
	if err != nil || len(done.Refused) != 1 || target.commits != commits+1 {
		t.Fatalf("%+v, %v: want ns/bad still refused, and left out", done, err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 2}, named(target.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
	c := want(svc("a", 2), svc("bad", 7))
	done, err = p.Change(ctx, c, from(b, c))
	if err != nil || len(done.Refused) != 0 {
		t.Fatalf("%+v, %v: want ns/bad taken when it changes", done, err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 2, "bad": 7}, named(target.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

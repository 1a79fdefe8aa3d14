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

// fakeTarget is a kernel which refuses port 666 and leaves the Service as it
// is then, and fails when told to.
type fakeTarget struct {
	rules   rules
	fail    error // of the next Read or Commit
	reads   int
	commits int
	slow    chan struct{} // a Read takes until there is one; nil: no time
	whole   bool          // its plans cannot be divided
}

type fakePlan struct {
	have, want rules
	whole      bool
	part       bool // of a plan: names some rules only
}

func (t *fakeTarget) failure() error {
	err := t.fail
	t.fail = nil
	return err
}

func (t *fakeTarget) Read(context.Context) (rules, error) {
	t.reads++
	found, err := maps.Clone(t.rules), t.failure()
	if t.slow != nil {
		<-t.slow
	}
	return found, err
}

func (t *fakeTarget) Plan(have, want rules) apply.Plan {
	return &fakePlan{have: have, want: want, whole: t.whole}
}

func (t *fakeTarget) Commit(_ context.Context, p apply.Plan) error {
	t.commits++
	if err := t.failure(); err != nil {
		return err
	}
	plan := p.(*fakePlan)
	if plan.part {
		for name, port := range t.rules {
			if _, of := plan.have[name]; !of && plan.want[name] == 0 {
				plan.have[name], plan.want[name] = port, port
			}
		}
	}
	if !maps.Equal(t.rules, plan.have) {
		return errors.New("the plan is from another state")
	}
	before := t.rules
	t.rules = rules{}
	q := &apply.Quarantine{}
	for name, port := range plan.want {
		if port == 666 {
			q.Refused = append(q.Refused, apply.Refusal{Service: name, Reason: errors.New("no")})
			if port = before[name]; port == 0 {
				continue
			}
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

func (p *fakePlan) Without(objects map[string]bool) (apply.Plan, bool) {
	rest := &fakePlan{have: maps.Clone(p.have), want: maps.Clone(p.want), part: true}
	for _, of := range []rules{rest.have, rest.want} {
		maps.DeleteFunc(of, func(n ir.Name, _ uint16) bool { return objects[n.String()] })
	}
	return rest, !p.whole
}

// fakeMemory lowers a Service to its first port.
type fakeMemory struct{ last rules }

func (fakeMemory) Lower(programs ir.Programs) rules {
	r := rules{}
	for _, p := range ir.Present(programs) {
		for _, s := range p.Services {
			r[s.Name] = s.Frontends[0].Match.Port
		}
	}
	return r
}

func (m *fakeMemory) Remember(programs ir.Programs) { m.last = m.Lower(programs) }

func (m *fakeMemory) Plan(_ ir.Programs, changes ir.Changes) apply.Plan {
	have, want := maps.Clone(m.last), maps.Clone(m.last)
	for _, c := range changes.IPv4 {
		delete(have, c.Name)
		if c.Old != nil {
			have[c.Name] = c.Old.Frontends[0].Match.Port
		}
		delete(want, c.Name)
		if c.New != nil {
			want[c.Name] = c.New.Frontends[0].Match.Port
		}
	}
	m.last = want
	few := &fakePlan{have: rules{}, want: rules{}, part: true}
	for _, c := range changes.IPv4 {
		if port, ok := have[c.Name]; ok {
			few.have[c.Name] = port
		}
		if port, ok := want[c.Name]; ok {
			few.want[c.Name] = port
		}
	}
	return few
}

func svc(name string, port uint16) ir.Service {
	return ir.Service{Name: ir.Name{Namespace: "ns", Name: name}, Frontends: []ir.Frontend{{Match: ir.Match{Port: port}}}}
}

// want are Programs of the Services.
func want(services ...ir.Service) ir.Programs {
	return ir.NewPrograms(&ir.Program{Family: ir.IPv4, Services: services}, &ir.Program{Family: ir.IPv6})
}

// from gives what leads from one state to another.
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
	done, err := p.Change(ctx, from(a, b))
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
	if _, err := p.Change(t.Context(), from(a, b)); err == nil {
		t.Fatal("the failure is not told")
	}
	c := want(svc("a", 3))
	if _, err := p.Change(t.Context(), from(b, c)); !errors.Is(err, errUnknown) {
		t.Errorf("a change of what nobody knows: %v, want %v", err, errUnknown)
	}
	if _, err := p.Replace(t.Context(), c); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]uint16{"a": 3}, named(target.rules)); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

// A Service that the kernel refuses has no rules, not even its old ones; the
// others go on at the cost of their own changes, and it comes back when it changes.
func TestPlaneQuarantine(t *testing.T) {
	ctx := t.Context()
	target, p := newPlane()
	last := want(svc("a", 1), svc("bad", 5))
	if _, err := p.Replace(ctx, last); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name       string
		want       ir.Programs
		full       bool
		reads      int
		now, after []string
		inForce    map[string]uint16
	}{
		{"refused", want(svc("a", 1), svc("bad", 666)), false, 1, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 1}},
		{"another changes", want(svc("a", 2), svc("bad", 666)), false, 0, nil, []string{"bad"}, map[string]uint16{"a": 2}},
		{"another is refused", want(svc("a", 666), svc("bad", 666)), false, 1, []string{"a"}, []string{"a", "bad"}, map[string]uint16{}},
		{"one is well", want(svc("a", 3), svc("bad", 666)), false, 0, nil, []string{"bad"}, map[string]uint16{"a": 3}},
		{"all are tried again", want(svc("a", 3), svc("bad", 666)), true, 2, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 3}},
		{"the other is well", want(svc("a", 3), svc("bad", 7)), false, 0, nil, nil, map[string]uint16{"a": 3, "bad": 7}},
		{"refused again", want(svc("a", 3), svc("bad", 666)), false, 1, []string{"bad"}, []string{"bad"}, map[string]uint16{"a": 3}},
		{"gone", want(svc("a", 3)), false, 0, nil, nil, map[string]uint16{"a": 3}},
	} {
		reads := target.reads
		var done Done
		var err error
		if step.full {
			done, err = p.Replace(ctx, step.want)
		} else {
			done, err = p.Change(ctx, from(last, step.want))
		}
		last = step.want
		if err != nil || target.reads-reads != step.reads || done.Drift != (apply.Count{}) {
			t.Errorf("%s: %v, %d reads, want %d; drift %v", step.name, err, target.reads-reads, step.reads, done.Drift)
		}
		if diff := cmp.Diff(step.now, servicesOf(done.RefusedNow)); diff != "" {
			t.Errorf("%s: refused now (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.after, servicesOf(done.Refused)); diff != "" {
			t.Errorf("%s: left out (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.inForce, named(target.rules)); diff != "" {
			t.Errorf("%s: in force (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.inForce, named(fakeMemory{}.Lower(p.InForce()))); diff != "" {
			t.Errorf("%s: told to be in force (-want +got):\n%s", step.name, diff)
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
func TestPlaneReadmitsBothFamilies(t *testing.T) {
	_, p := newPlane()
	name := ir.Name{Namespace: "ns", Name: "bad"}
	v4, v6 := svc("bad", 666), svc("bad", 6)
	programs := want(v4)
	programs.IPv6.Services = []ir.Service{v6}
	p.refuse([]apply.Refusal{{Service: name}}, programs, &Done{})
	better := svc("bad", 4)
	got := p.readmit(ir.Changes{IPv4: []ir.Change{{Name: name, New: &better}}})
	if len(got.IPv6) != 1 || got.IPv6[0].New.Frontends[0].Match.Port != 6 || len(p.refused) != 0 {
		t.Errorf("%+v, want the Service as it is in the other family, too", got)
	}
}

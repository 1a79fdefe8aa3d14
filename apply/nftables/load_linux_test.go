package nftables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// planOnEmpty reads an empty node and plans.
func planOnEmpty(t *testing.T, n node, want ir.Programs) *Plan {
	t.Helper()
	if err := n.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	p := n.Plan(want).(*Plan)
	for f, c := range ir.Present(p.families) {
		if c.sets.load == nil {
			t.Fatalf("%s: the plan holds all elements", f)
		}
	}
	return p
}

// A missing table is loaded without holding its elements. The operations and the result are the
// same as if they were held.
func TestLoad(t *testing.T) {
	for name := range nftest.Variants(ir.IPv4) {
		t.Run(name, func(t *testing.T) {
			program := func(f ir.Family) *ir.Program {
				p := nftest.Program(f)
				nftest.Variants(f)[name](&p.Node)
				return p
			}
			programs := ir.NewPrograms(program(ir.IPv4), program(ir.IPv6))
			n, want := newNode(t), rules.LowerAll(programs)
			plan, held := planOnEmpty(t, n, programs), newPlan(rules.Tables{}, want)
			if d := cmp.Diff(allOperations(held), allOperations(plan)); d != "" {
				t.Errorf("(-held +loaded):\n%s", d)
			}
			if got, want := plan.Total(), held.Total(); got != want || got.Added != len(allOperations(plan)) {
				t.Errorf("%d operations: the total is %+v, of the plan that holds them %+v", len(allOperations(plan)), got, want)
			}
			if r, err := n.Commit(t.Context(), plan); err != nil || len(r.Refused) > 0 {
				t.Fatal(err, r)
			}
			holds(t, "after the load", n, want)
		})
	}
}

// Rejections during a load are reported as if the Plan held all elements.
func TestLoadRefused(t *testing.T) {
	n := newNode(t)
	good := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	bad := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	s := &bad.IPv4.Services[0]
	s.Frontends = append(s.Frontends, s.Frontends[0])
	r, err := n.Commit(t.Context(), planOnEmpty(t, n, bad))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Refused) != 1 || r.Refused[0].Service != s.Name {
		t.Fatalf("refused: %v", r.Refused)
	}
	commitRest(t, n, bad, r)
	if err := n.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	for op := range n.Plan(apply.Without(good, r.Refused)).Operations {
		t.Errorf("not done: %s %s of %s", op.Verb, op.Object, op.Service)
	}
}

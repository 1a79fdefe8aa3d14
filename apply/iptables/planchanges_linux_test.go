package iptables

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// TestPlanChangesAsAWholeIs compares the Plans of changes with those of complete Rulesets.
func TestPlanChangesAsAWholeIs(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	target := &Dataplane{lowering: ModeIPTables, tables: &tables{tools: &tools{Variant: NFT, version: version{1, 8, 9}, families: []ir.Family{ir.IPv4, ir.IPv6}}}}
	all := programs(200)
	now := thinned(all, random)
	target.applied.Replace(now)
	for range 20 {
		next := thinned(all, random)
		got := target.PlanChanges(target.Applied().From(changes(now, next))).(*Plan)
		target.remember(got)
		want := target.Difference(lower(now), lower(next))
		samePlans(t, want, got, opsInOrder)
		now = next
	}
	if !target.PlanChanges(ir.Changes{}).Empty() {
		t.Error("there is something to do without a change")
	}
}

func changes(now, next ir.Programs) (all ir.Changes) {
	for f, p := range ir.Present(now) {
		*all.At(f) = ir.Diff(byName(p), byName(next.Of(f)))
	}
	return all
}

// byName returns p with its Services in the order of a compiled Program.
func byName(p *ir.Program) *ir.Program {
	q := *p
	q.Services = slices.Clone(p.Services)
	slices.SortFunc(q.Services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
	return &q
}

// opsInOrder returns a Plan's operations sorted independently of the chains.
func opsInOrder(p apply.Plan) []apply.Operation {
	ops := opsOf(p)
	slices.SortFunc(ops, func(a, b apply.Operation) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Verb, b.Verb))
	})
	return ops
}

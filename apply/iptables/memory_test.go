package iptables

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

var _ loop.Memory[rules.Rulesets] = (*Memory)(nil)

// TestMemoryPlansAsTargetDoes holds the Plans of a Memory against those of
// whole Rulesets.
func TestMemoryPlansAsTargetDoes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	target := &Target{Variant: NFT, version: version{1, 8, 9}, families: []ir.Family{ir.IPv4, ir.IPv6}}
	m := NewMemory(target)
	all := programs(200)
	now := thinned(all, random)
	m.Remember(now)
	for range 20 {
		next := thinned(all, random)
		got := m.Plan(bare(next), changes(now, next)).(*Plan)
		want := target.Plan(lower(now), lower(next)).(*Plan)
		samePlans(t, want, got, opsInOrder)
		now = next
	}
	if !m.Plan(bare(now), ir.Changes{}).Empty() {
		t.Error("there is something to do without a change")
	}
}

// bare gives the programs without their Services.
func bare(programs ir.Programs) (all ir.Programs) {
	for f, p := range ir.Present(programs) {
		*all.At(f) = &ir.Program{Family: f, Node: p.Node}
	}
	return all
}

func changes(now, next ir.Programs) (all ir.Changes) {
	for f, p := range ir.Present(now) {
		*all.At(f) = ir.Diff(byName(p), byName(next.Of(f)))
	}
	return all
}

// byName is p with its Services in the order of a compiled Program.
func byName(p *ir.Program) *ir.Program {
	q := *p
	q.Services = slices.Clone(p.Services)
	slices.SortFunc(q.Services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
	return &q
}

// opsInOrder gives a Plan's operations in an order that is not that of the chains.
func opsInOrder(p apply.Plan) []apply.Operation {
	ops := opsOf(p)
	slices.SortFunc(ops, func(a, b apply.Operation) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Verb, b.Verb))
	})
	return ops
}

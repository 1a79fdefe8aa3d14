package nftables

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Services that change individually or together have the same result as a fresh table.
func TestStateHoldsHistories(t *testing.T) {
	random := rand.New(rand.NewPCG(applytest.Seed(t), 2))
	n := newNode(t)
	empty := both(func(f ir.Family) *ir.Program { return &ir.Program{Family: f, Node: nftest.Node(f)} })
	if _, err := once(t, n, empty); err != nil {
		t.Fatal(err)
	}
	states := map[ir.Family]*rules.Lowerer{ir.IPv4: rules.NewLowerer(ir.IPv4), ir.IPv6: rules.NewLowerer(ir.IPv6)}
	programs := map[ir.Family]*ir.Program{}
	as := func(p *ir.Program) *ir.Program { return p }
	steps := applytest.Of(60, 200)
	for step := range steps {
		if step == steps/2 { // the Services become ports of one
			plan := &Plan{}
			for f, s := range states {
				*plan.families.At(f) = update(s, &programs[f].Node, changes(programs[f], oneService(programs[f]))...)
			}
			if _, err := n.Commit(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			as = oneService
		}
		plan := &Plan{}
		for _, f := range ir.Families() { // in order, so that a seed says all
			s := states[f]
			now := vary(nftest.Program(f), random)
			now.Node = nftest.Node(f)
			if step%3 > 0 { // most of the time one Service changes, or few
				now = some(programs[f], now, random)
			}
			*plan.families.At(f) = update(s, &now.Node, changes(as(programs[f]), as(now))...)
			programs[f] = now
		}
		if _, err := n.Commit(t.Context(), plan); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if step%20 == 0 {
			holds(t, "the history", n, lower(as(programs[ir.IPv4]), as(programs[ir.IPv6])))
			if t.Failed() {
				t.Fatalf("at step %d", step)
			}
		}
	}
	plan := &Plan{}
	for f, s := range states {
		*plan.families.At(f) = update(s, &programs[f].Node, changes(as(programs[f]), &ir.Program{})...)
	}
	if _, err := n.Commit(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	holds(t, "all Services gone", n, empty)
}

// some takes a third of the Services from now, and the others from before.
func some(before, now *ir.Program, random *rand.Rand) *ir.Program {
	p := *now
	p.Services = nil
	for i := range 6 {
		from := before
		if random.IntN(3) == 0 {
			from = now
		}
		name := nftest.Program(ir.IPv4).Services[i].Name
		if s := serviceIn(from, name); s != nil {
			p.Services = append(p.Services, *s)
		}
	}
	return &p
}

func serviceIn(p *ir.Program, name ir.Name) *ir.Service {
	if p != nil {
		if i := slices.IndexFunc(p.Services, func(s ir.Service) bool { return s.Name == name }); i >= 0 {
			return &p.Services[i]
		}
	}
	return nil
}

// changes returns the changes from before to now.
func changes(before, now *ir.Program) []ir.Change {
	var all []ir.Change
	for i := range now.Services {
		s := &now.Services[i]
		if old := serviceIn(before, s.Name); old == nil || !cmp.Equal(*old, *s, cmp.Comparer(sameAddrPort), cmp.Comparer(sameAddr), cmp.Comparer(samePrefix)) {
			all = append(all, ir.Change{Name: s.Name, Old: old, New: s})
		}
	}
	if before != nil {
		for i := range before.Services {
			if s := &before.Services[i]; serviceIn(now, s.Name) == nil {
				all = append(all, ir.Change{Name: s.Name, Old: s})
			}
		}
	}
	return all
}

// oneService returns a Program with the Services of another one as ports of a single Service.
func oneService(p *ir.Program) *ir.Program {
	if p == nil {
		return nil
	}
	whole := &ir.Service{Name: ir.Name{Namespace: "ns", Name: "all"}, Origin: ir.Origin{Object: "Service ns/all"}}
	for i := range p.Services {
		s := &p.Services[i]
		rename := func(port *ir.ServicePort) { port.Service, port.Port = whole.Name, s.Name.Name }
		for _, f := range s.Frontends {
			f.Routes = slices.Clone(f.Routes)
			for j := range f.Routes {
				f.Routes[j].Pool += len(whole.Pools)
			}
			rename(&f.Port)
			whole.Frontends = append(whole.Frontends, f)
		}
		for _, pool := range s.Pools {
			rename(&pool.Port)
			whole.Pools = append(whole.Pools, pool)
		}
		whole.Draining = append(whole.Draining, s.Draining...)
	}
	slices.SortFunc(whole.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) })
	one := *p
	one.Services = []ir.Service{*whole}
	return &one
}

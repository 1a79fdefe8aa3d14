package nftables

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// After the last Service is removed, nothing is counted, and everything that was
// added has been removed.
func TestLowererLetsGo(t *testing.T) {
	p := richProgram(ir.IPv4)
	l := NewLowerer(ir.IPv4)
	var there, back []ir.Change
	for i := range p.Services {
		s := &p.Services[i]
		there, back = append(there, ir.Change{Name: s.Name, New: s}), append(back, ir.Change{Name: s.Name, Old: s})
	}
	in, out := l.Change(&p.Node, there...), l.Change(&p.Node, back...)
	if len(in.AddedChains) == 0 || len(in.AddedChains) != len(out.RemovedChains) || len(in.RemovedChains)+len(out.AddedChains) > 0 {
		t.Errorf("%d chains came and %d went", len(in.AddedChains), len(out.RemovedChains))
	}
	for _, id := range SharedSets() {
		if len(in.Added[id]) == 0 || len(in.Added[id]) != len(out.Removed[id]) {
			t.Errorf("%s: %d elements came and %d went", id, len(in.Added[id]), len(out.Removed[id]))
		}
	}
	if len(in.AddedLists) == 0 || len(in.AddedLists) != len(out.RemovedLists) || len(in.RemovedLists)+len(out.AddedLists) > 0 {
		t.Errorf("%d sets of source ranges came and %d went", len(in.AddedLists), len(out.RemovedLists))
	}
	if len(l.users)+len(l.lists)+len(l.wanters) > 0 {
		t.Errorf("without Services it remembers %v, %v and %v", l.users, l.lists, l.wanters)
	}
}

// Chains that few Services require exist only while one of these Services exists.
func TestRareChains(t *testing.T) {
	const n = 3
	services := func(affinity bool) (all []ir.Service) {
		for i := range n {
			all = append(all, richService(ir.IPv4, ir.TCP, 10+10*i, affinity))
		}
		return all
	}
	for chain, with := range map[string][]ir.Service{chainAffinity: services(true)} {
		p := &ir.Program{Family: ir.IPv4, Node: testNode(ir.IPv4), Services: services(false)}
		for _, c := range Lower(p).Chains {
			if c.Name == chain || calls(&c, chain) {
				t.Errorf("chain %s is there, and no Service needs %s", c.Name, chain)
			}
		}
		l := NewLowerer(ir.IPv4)
		// hooks returns the change in the number of chains that call it.
		hooks := func(d *Delta) (n int) {
			for _, c := range slices.Concat(d.AddedChains, d.Rules) {
				n += btoi(calls(c, chain))
			}
			for _, c := range slices.Concat(d.RemovedChains, d.Rewritten) {
				n -= btoi(calls(c, chain))
			}
			return n
		}
		for i := range with {
			if got := hooks(l.Change(&p.Node, ir.Change{Name: with[i].Name, New: &with[i]})); got != 2*btoi(i == 0) {
				t.Errorf("%s: Service %d of %d hooks it in %d times", chain, i+1, n, got)
			}
		}
		for i := range with {
			if got := hooks(l.Change(&p.Node, ir.Change{Name: with[i].Name, Old: &with[i]})); got != -2*btoi(i == n-1) {
				t.Errorf("%s: Service %d of %d hooks it out %d times", chain, i+1, n, -got)
			}
		}
	}
}

func calls(c *Chain, chain string) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool { return slices.Contains(r.Stmts, Stmt(Verdict{Jump, chain})) })
}

// Filling a Lowerer is equivalent to adding all Services. A bare table is equal
// to the whole one except for elements.
func TestFill(t *testing.T) {
	p := richProgram(ir.IPv6)
	changed, filled := NewLowerer(p.Family), NewLowerer(p.Family)
	for i := range p.Services {
		changed.Change(&p.Node, ir.Change{Name: p.Services[i].Name, New: &p.Services[i]})
	}
	filled.Fill(p)
	if d := cmp.Diff(changed, filled, cmp.AllowUnexported(Lowerer{}, inUse{}, sharedElement{}), cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("(-changed +filled):\n%s", d)
	}
}

// A Lowerer that followed changes of ports is equal to one that is filled with the last version.
// Only ports that differ are lowered, unless the Service has source ranges.
func TestLowererLowersChangedPorts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	node := testNode(ir.IPv4)
	ranges := []ir.SourceRange{{Prefix: netip.MustParsePrefix("198.51.100.0/24")}}
	for range 30 {
		l := NewLowerer(ir.IPv4)
		var old *ir.Service
		for range 20 {
			c := ir.Change{Old: old, New: irtest.Ports(random.IntN)}
			guarded := hasSourceRanges(old)
			if random.IntN(4) == 0 {
				guarded = true
				for i := range c.New.Frontends {
					c.New.Frontends[i].SourceRanges = ranges
				}
			}
			lowered := 0
			for _, port := range c.ByPort {
				if guarded || !port.Equivalent() {
					lowered++
				}
			}
			if d := l.Change(&node, c); len(d.Ports) != lowered {
				t.Errorf("%d ports were lowered, want %d", len(d.Ports), lowered)
			}
			old = c.New
			filled := NewLowerer(ir.IPv4)
			filled.Fill(&ir.Program{Family: ir.IPv4, Node: node, Services: []ir.Service{*old}})
			if d := cmp.Diff(l, filled, cmp.AllowUnexported(Lowerer{}, inUse{}, sharedElement{}), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Fatalf("(-changed +filled):\n%s", d)
			}
		}
		if l.Change(&node, ir.Change{Old: old}); len(l.users)+len(l.lists)+len(l.wanters) > 0 {
			t.Fatalf("without Services it remembers %v, %v and %v", l.users, l.lists, l.wanters)
		}
	}
}

func TestLowerBare(t *testing.T) {
	p := richProgram(ir.IPv4)
	whole := Lower(p)
	var elements [setCount][]Element
	bare := LowerBare(p, func(id SetID, some []Element) bool {
		elements[id] = append(elements[id], some...)
		return true
	})
	for id := range elements {
		if len(bare.Sets[id].Elements) > 0 {
			t.Errorf("%s has elements", SetID(id))
		}
		bare.Sets[id].Elements = elements[id]
	}
	var a, b strings.Builder
	for out, r := range map[*strings.Builder]*Ruleset{&a: whole, &b: bare} {
		if err := Write(out, NewTables(r)); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(a.String(), b.String()); d != "" {
		t.Errorf("(-whole +bare with its elements):\n%s", d)
	}
	if calls := 0; LowerBare(p, func(SetID, []Element) bool { calls++; return calls < 2 }) != nil || calls != 2 {
		t.Errorf("went on after %d calls", calls)
	}
}

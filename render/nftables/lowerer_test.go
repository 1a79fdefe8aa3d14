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
	none, in := l.Change(&p.Node, there...)
	out, left := l.Change(&p.Node, back...)
	if d := cmp.Diff([2][]string{linesOf(t, none), linesOf(t, in)}, [2][]string{linesOf(t, left), linesOf(t, out)}); d != "" {
		t.Errorf("(-added +removed):\n%s", d)
	}
	for _, id := range sharedSets() {
		i, all := slices.IndexFunc(in.Sets, func(s Set) bool { return s.Name == id.String() }), Lower(p).Sets[id].Elements
		if i < 0 || len(in.Sets[i].Elements) != len(all) || len(none.Sets[i].Elements) > 0 {
			t.Errorf("%s: the elements are not added once each", id)
		}
	}
	if len(l.users)+len(l.lists)+len(l.wanters) > 0 {
		t.Errorf("without Services it remembers %v, %v and %v", l.users, l.lists, l.wanters)
	}
}

func linesOf(t *testing.T, r *Ruleset) []string {
	var text strings.Builder
	if err := Write(&text, NewTables(r)); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(strings.SplitSeq(text.String(), "\n"))
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
		hooks := func(have, want *Ruleset) (n int) {
			for i := range want.Chains {
				n += ir.Int(calls(&want.Chains[i], chain))
			}
			for i := range have.Chains {
				n -= ir.Int(calls(&have.Chains[i], chain))
			}
			return n
		}
		for i := range with {
			if got := hooks(l.Change(&p.Node, ir.Change{Name: with[i].Name, New: &with[i]})); got != 2*ir.Int(i == 0) {
				t.Errorf("%s: Service %d of %d hooks it in %d times", chain, i+1, n, got)
			}
		}
		for i := range with {
			if got := hooks(l.Change(&p.Node, ir.Change{Name: with[i].Name, Old: &with[i]})); got != -2*ir.Int(i == n-1) {
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

// A Lowerer that followed changes is equal to one that is filled with the last version.
func TestLowererFollowsChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	node := testNode(ir.IPv4)
	ranges := []ir.SourceRange{{Prefix: netip.MustParsePrefix("198.51.100.0/24")}}
	for range 30 {
		l := NewLowerer(ir.IPv4)
		var old *ir.Service
		for range 20 {
			c := ir.Change{Old: old, New: irtest.Ports(random.IntN)}
			if random.IntN(4) == 0 {
				for i := range c.New.Frontends {
					c.New.Frontends[i].SourceRanges = ranges
				}
			}
			l.Change(&node, c)
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
	if d := cmp.Diff(linesOf(t, whole), linesOf(t, bare)); d != "" {
		t.Errorf("(-whole +bare with its elements):\n%s", d)
	}
	if calls := 0; LowerBare(p, func(SetID, []Element) bool { calls++; return calls < 2 }) != nil || calls != 2 {
		t.Errorf("went on after %d calls", calls)
	}
}

// With another masqueradeBit, the shared chains of a table keep the mark that its chains set: some of
// those are not repaired without objects. A chain with a foreign mark beside right ones is.
func TestSharedChainsKeepTheMark(t *testing.T) {
	for _, f := range families {
		p := richProgram(f)
		table := Lower(p)
		for _, c := range Shared(&p.Node, f, table.Chains) {
			if i := slices.IndexFunc(table.Chains, func(o Chain) bool { return o.Name == c.Name }); !c.SameRules(&table.Chains[i], f) {
				t.Errorf("%s: chain %s is no part of its table", f, c.Name)
			}
		}
		other := p.Node
		other.MasqueradeBit++
		if diff := cmp.Diff(Shared(&p.Node, f, table.Chains), Shared(&other, f, table.Chains), cmp.Comparer(func(a, b Chain) bool { return a.Name == b.Name && a.SameRules(&b, f) })); diff != "" {
			t.Errorf("%s: another masqueradeBit changes\n%s", f, diff)
		}
		foreign := slices.Clone(table.Chains)
		i := slices.IndexFunc(foreign, func(c Chain) bool { return c.Name == "masq-lb" })
		foreign[i].Rules = []Rule{{Stmts: []Stmt{SetMark{1 << other.MasqueradeBit}}}}
		if diff := cmp.Diff(Shared(&p.Node, f, table.Chains), Shared(&p.Node, f, foreign), cmp.Comparer(func(a, b Chain) bool { return a.Name == b.Name && a.SameRules(&b, f) })); diff != "" {
			t.Errorf("%s: a foreign mark changes\n%s", f, diff)
		}
	}
}

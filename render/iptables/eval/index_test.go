package eval

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// walkers returns an Evaluator that evaluates every rule in its chain, and one
// with lookups wherever possible.
func walkers(r *iptables.Ruleset, own *sim.Own) (linear, looking *Evaluator) {
	of := func(long int) *Evaluator {
		w := *NewWalker(r, own, nil)
		w.filter, w.nat = indexed(&r.Filter, long), indexed(&r.Nat, long)
		return &Evaluator{walker: &w}
	}
	return of(0), of(1)
}

// unmarked is a Side whose rules may leave any mark.
type unmarked struct{ prove.Side }

func (u unmarked) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	o := u.Side.Outcome(pkt, cuts)
	cuts.Unknown = slices.DeleteFunc(cuts.Unknown, func(what string) bool { return strings.Contains(what, "leaves with the mark") })
	return o
}

// Rules with lookups have the same effect as rules in sequence, for every packet
// and any rules. They record equivalent comparisons: both variants find the same
// differences from other rules.
func TestLookupIsWalk(t *testing.T) {
	node := prove.Node{Family: ir.IPv4, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.11")}}
	ownOf := func(f ir.Family) *sim.Own {
		own := sim.NewOwn(f.Loopback(), node.Addrs)
		own.Mark = 0x4000
		return own
	}
	own := ownOf(ir.IPv4)
	compare := func(a, b prove.Side) *prove.Result {
		r, err := prove.Compare(t.Context(), node, unmarked{a}, unmarked{b})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	fates, lookups, within, differ := map[sim.Fate]int{}, 0, 0, 0
	for seed := range uint64(200) {
		g := generator{rand.New(rand.NewPCG(1, seed))}
		r := g.ruleset()
		if seed%5 == 0 {
			p := irtest.Program(ir.ModeIPTables)
			node.Addrs = p.Node.Addrs
			own = ownOf(p.Family)
			r = iptables.Lower(p)
			g.mutate(r)
		}
		linear, looking := walkers(r, own)
		for _, c := range looking.walker.nat {
			if c.index != nil {
				lookups += len(c.index.at)
			}
		}
		within += len(linear.walker.nat) - len(looking.walker.nat)
		if result := compare(linear, looking); len(result.Differences) > 0 {
			d := result.Differences[0]
			t.Fatalf("seed %d: %+v\nlinear:  %s\nlooking: %s\n%s", seed, d.Packet, d.A, d.B, ruleList(r))
		}
		other := clone(r)
		g.mutate(other)
		linear2, looking2 := walkers(other, own)
		a, b := compare(linear, linear2), compare(looking, looking2)
		if a.Equal() != b.Equal() {
			t.Fatalf("seed %d: with a fault equal is %v where each rule is looked at, %v where they are looked up\n%s\n%s", seed, a.Equal(), b.Equal(), ruleList(r), ruleList(other))
		}
		if !a.Equal() {
			differ++
		}
		for _, d := range a.Differences {
			fates[d.A.Fate]++
			fates[d.B.Fate]++
		}
	}
	t.Logf("%d places, %d chains within others, %d pairs differ, fates %v", lookups, within, differ, fates)
	if lookups < 500 || within < 50 || differ < 20 || len(fates) < 4 {
		t.Error("the rules are not such that the test shows much")
	}
}

// A proof has the same result for rules with lookups by source and for rules in
// sequence: the same differences and classes.
func TestSourcesAreWalked(t *testing.T) {
	node := prove.Node{Family: ir.IPv4, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.11")}}
	own := sim.NewOwn(node.Family.Loopback(), node.Addrs)
	own.Mark = 0x4000
	compare := func(a, b prove.Side) *prove.Result {
		r, err := prove.Compare(t.Context(), node, a, b)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	equal, differ, found := 0, 0, 0
	for seed := range uint64(300) {
		g := generator{rand.New(rand.NewPCG(2, seed))}
		r := g.sources()
		other := clone(r)
		g.mutate(other)
		_, looking := walkers(r, own)
		_, looking2 := walkers(other, own)
		got := compare(looking, looking2)
		found += walkSources(looking) + walkSources(looking2)
		want := compare(looking, looking2)
		if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Fatalf("seed %d (-walked +looked up):\n%s\n%s\n%s", seed, diff, ruleList(r), ruleList(other))
		}
		if want.Equal() {
			equal++
		} else {
			differ++
		}
	}
	t.Logf("%d rules looked up by source, %d pairs equal, %d different", found, equal, differ)
	if found < 5000 || equal < 30 || differ < 30 {
		t.Error("the rules are not such that the test shows much")
	}
}

// walkSources makes an Evaluator evaluate the rules with lookups by source in
// sequence. It returns their number.
func walkSources(e *Evaluator) (n int) {
	for _, table := range [...]map[string]*chain{e.walker.filter, e.walker.nat} {
		for _, c := range table {
			if l := c.index; l != nil && l.sources != nil {
				n += len(l.sources.numbers)
				l.rest = slices.Sorted(slices.Values(slices.Concat(l.rest, l.sources.numbers)))
				l.sources = nil
			}
		}
	}
	return n
}

func ruleList(r *iptables.Ruleset) string {
	var text []byte
	for _, table := range r.Tables() {
		for _, c := range table.Chains {
			for i := range c.Rules {
				text = fmt.Appendf(text, "%s %s %+v\n", table.Name, c.Name, c.Rules[i].Key())
			}
		}
	}
	return string(text)
}

func clone(r *iptables.Ruleset) *iptables.Ruleset {
	c := *r
	for _, table := range c.Tables() {
		table.Chains = slices.Clone(table.Chains)
		for i := range table.Chains {
			table.Chains[i].Rules = slices.Clone(table.Chains[i].Rules)
		}
	}
	return &c
}

// generator generates unusual rules with few addresses and ports, so that they
// apply to the same packets.
type generator struct{ *rand.Rand }

func (g generator) one(of ...string) string { return of[g.IntN(len(of))] }

func (g generator) ruleset() *iptables.Ruleset {
	r := &iptables.Ruleset{Family: ir.IPv4, Filter: iptables.Table{Name: "filter"}, Nat: iptables.Table{Name: "nat"}}
	for _, table := range r.Tables() {
		const chains = 7
		used := map[int]bool{}
		for i := range chains {
			c := iptables.Chain{Name: fmt.Sprintf("KUBE-%d", i)}
			// One in two chains is like those of dispatch trees.
			dispatch := g.IntN(2) == 0
			for range 1 + g.IntN(12) {
				rule := g.rule(table.Name == "nat", dispatch)
				if rule.Target == iptables.Jump {
					switch {
					case i+1 == chains || dispatch && used[i+1]:
						rule.Target = iptables.Drop
					case dispatch:
						rule.Chain, used[i+1] = fmt.Sprintf("KUBE-%d", i+1), true
					default:
						rule.Chain = fmt.Sprintf("KUBE-%d", i+1+g.IntN(chains-i-1))
					}
				}
				c.Rules = append(c.Rules, rule)
			}
			table.Chains = append(table.Chains, c)
		}
		for _, hook := range iptables.BuiltInChains() {
			if table.Name == "filter" != (hook == "FORWARD" || hook == "INPUT") && hook != "OUTPUT" {
				continue
			}
			table.Jumps = append(table.Jumps, iptables.BuiltInJump{Chain: hook, Rule: iptables.Rule{Target: iptables.Jump, Chain: "KUBE-0"}})
		}
	}
	return r
}

// sources generates chains in which most rules match only a source, like those of
// a Service with source ranges. Some jump to a chain from which packets may
// return.
func (g generator) sources() *iptables.Ruleset {
	r := &iptables.Ruleset{Family: ir.IPv4, Filter: iptables.Table{Name: "filter"}, Nat: iptables.Table{Name: "nat"}}
	for _, table := range r.Tables() {
		for i, n := range []int{12, 4, 2} {
			c := iptables.Chain{Name: fmt.Sprintf("KUBE-%d", i)}
			for range 1 + g.IntN(n) {
				rule := iptables.Rule{Src: netip.MustParsePrefix(g.one("10.0.0.0/8", "10.96.0.0/16", "10.96.0.0/24", "10.96.1.0/24", "10.96.0.1/32", "192.0.2.11/32", "0.0.0.0/1", "128.0.0.0/1"))}
				switch g.IntN(24) {
				case 0, 1, 2:
					rule.Not = iptables.Src
				case 3, 4, 5:
					rule.Mark = iptables.Mark{Value: 0x4000, Mask: 0x4000}
				case 6, 7, 8:
					rule.Src, rule.In = netip.Prefix{}, "eth0"
				case 9: // few, because each doubles the number of paths
					rule.OneIn = 2
				}
				rule.Target = [...]iptables.Target{iptables.Jump, iptables.Jump, iptables.Return, iptables.Accept, iptables.Continue, iptables.SetMark}[g.IntN(6)]
				switch {
				case rule.Target == iptables.Jump && i < 2:
					rule.Chain = fmt.Sprintf("KUBE-%d", i+1)
				case rule.Target == iptables.Jump || rule.Target == iptables.Accept && table.Name == "filter":
					rule.Target = [...]iptables.Target{iptables.Drop, iptables.Reject, iptables.Accept}[g.IntN(3)]
				case rule.Target == iptables.SetMark:
					rule.XMark = iptables.Mark{Value: 0x4000, Mask: 0x4000}
				}
				c.Rules = append(c.Rules, rule)
			}
			if g.IntN(2) == 0 {
				c.Rules = append(c.Rules, iptables.Rule{Comment: "other traffic"})
			}
			table.Chains = append(table.Chains, c)
		}
	}
	for _, hook := range []string{"FORWARD", "INPUT", "OUTPUT"} {
		r.Filter.Jumps = append(r.Filter.Jumps, iptables.BuiltInJump{Chain: hook, Rule: iptables.Rule{Target: iptables.Jump, Chain: "KUBE-0"}})
	}
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		r.Nat.Jumps = append(r.Nat.Jumps, iptables.BuiltInJump{Chain: hook, Rule: iptables.Rule{Target: iptables.Jump, Chain: "KUBE-0"}})
	}
	return r
}

func (g generator) rule(nat, dispatch bool) (r iptables.Rule) {
	prefix := func() netip.Prefix {
		return netip.MustParsePrefix(g.one("10.96.0.1/32", "10.96.0.1/32", "10.96.0.2/32", "10.96.0.0/30", "10.96.0.0/16", "192.0.2.11/32", "10.244.0.1/32", "10.244.0.0/24"))
	}
	if dispatch || g.IntN(2) == 0 {
		r.Dst = prefix()
	}
	if g.IntN(4) == 0 {
		r.Src = prefix()
	}
	if g.IntN(2) == 0 {
		r.Protocol = [...]ir.Protocol{ir.TCP, ir.UDP}[g.IntN(2)]
		if g.IntN(3) > 0 {
			r.Ports = [...]iptables.PortRange{{First: 80, Last: 80}, {First: 81, Last: 81}, {First: 80, Last: 95}, {First: 53, Last: 53}, {First: 64, Last: 127}}[g.IntN(5)]
		}
	}
	if !dispatch {
		switch g.IntN(12) {
		case 0:
			r.States = [...]iptables.State{iptables.New, iptables.DNATed, iptables.New | iptables.Established, iptables.Invalid}[g.IntN(4)]
		case 1:
			r.Mark = iptables.Mark{Value: 0x4000, Mask: 0x4000}
		case 2:
			r.In = g.one("eth0", "cni+")
		case 3:
			r.SrcLocal = true
		}
		r.DstLocal = g.IntN(5) == 0
		switch g.IntN(14) {
		case 0:
			r.OneIn = 2
		case 1:
			r.Recent = iptables.Recent{Op: iptables.RecentCheck, Seconds: 1, Name: "a"}
		case 2:
			r.Raw = "-m odd"
		}
		if g.IntN(5) == 0 {
			r.Not = iptables.Match(g.IntN(int(iptables.Bridged)))
		}
	}
	r.Target = [...]iptables.Target{iptables.Jump, iptables.Jump, iptables.Jump, iptables.Return, iptables.Accept, iptables.SetMark, iptables.Continue}[g.IntN(7)]
	if dispatch && g.IntN(3) > 0 {
		r.Target = iptables.Jump
	}
	switch {
	case r.Target == iptables.SetMark:
		r.XMark = iptables.Mark{Value: 0x4000, Mask: 0x4000}
	case r.Target == iptables.Accept && nat && r.Protocol != 0:
		r.Target, r.To = iptables.DNAT, netip.AddrPortFrom(netip.MustParseAddr(g.one("10.244.0.1", "10.244.0.2", "10.96.0.2")), uint16(8080+g.IntN(2)))
	case r.Target == iptables.Accept && nat:
		r.Target = iptables.Masquerade
	case r.Target == iptables.Accept:
		r.Target = [...]iptables.Target{iptables.Drop, iptables.Reject, iptables.Accept}[g.IntN(3)]
	}
	return r
}

// mutate makes one change to a ruleset, whose rules must not be shared.
func (g generator) mutate(r *iptables.Ruleset) {
	table := r.Tables()[g.IntN(2)]
	for {
		c := &table.Chains[g.IntN(len(table.Chains))]
		if len(c.Rules) == 0 {
			continue
		}
		rules := slices.Clone(c.Rules)
		i := g.IntN(len(rules))
		switch rule := &rules[i]; g.IntN(5) {
		case 0:
			rules = slices.Delete(rules, i, i+1)
		case 1:
			rules[0], rules[i] = rules[i], rules[0]
		case 2:
			if rule.Ports != (iptables.PortRange{}) {
				rule.Ports.Last++
			}
		case 3:
			if rule.Dst.IsValid() && rule.Dst.Bits() > 1 {
				rule.Dst = netip.PrefixFrom(rule.Dst.Addr(), rule.Dst.Bits()-1).Masked()
			}
		case 4:
			if rule.Src.IsValid() && rule.Src.Bits() > 1 {
				rule.Src = netip.PrefixFrom(rule.Src.Addr(), rule.Src.Bits()-1).Masked()
			}
		}
		c.Rules = rules
		return
	}
}

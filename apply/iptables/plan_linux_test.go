package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	rules "github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// memory is a kernel in memory that rejects what the kernel rejects.
type memory struct{ state *rules.Ruleset }

func (m *memory) table(name string) *rules.Table {
	if name == "filter" {
		return &m.state.Filter
	}
	return &m.state.Nat
}

// commit executes an edit completely, or not at all.
func (m *memory) commit(e edit) error {
	t := m.table(e.table)
	chains := map[string][]rules.Rule{}
	for _, c := range t.Chains {
		chains[c.Name] = c.Rules
	}
	jumps := slices.Clone(t.Jumps)
	for _, c := range e.set {
		chains[c.Name] = c.Rules
	}
	for _, f := range e.fill {
		chains[f.chain] = append(slices.Clone(chains[f.chain]), *f.rule)
	}
	for _, h := range e.removedJumps {
		i := slices.IndexFunc(jumps, func(o rules.BuiltInJump) bool { return equalJump(h, o) })
		if i < 0 {
			return fmt.Errorf("no such rule: %s %s", h.Chain, h.Rule.Append(nil, m.state.Family))
		}
		jumps = slices.Delete(jumps, i, i+1)
	}
	for _, h := range slices.Backward(e.addedJumps) {
		jumps = slices.Insert(jumps, 0, h)
	}
	for _, c := range e.drop {
		if _, ok := chains[c.Name]; !ok {
			return fmt.Errorf("no chain %s", c.Name)
		}
		delete(chains, c.Name)
	}
	for name, rs := range chains {
		for _, r := range rs {
			if _, ok := chains[r.Chain]; r.Target == rules.Jump && !ok {
				return fmt.Errorf("%s jumps to %s, which does not exist", name, r.Chain)
			}
		}
	}
	for _, h := range jumps {
		if _, ok := chains[h.Rule.Chain]; !ok {
			return fmt.Errorf("%s jumps to %s, which does not exist", h.Chain, h.Rule.Chain)
		}
	}
	t.Jumps, t.Chains = jumps, nil
	for name, rs := range chains {
		t.Chains = append(t.Chains, rules.Chain{Name: name, Rules: rs})
	}
	return nil
}

func empty(f ir.Family) *rules.Ruleset { return family(rules.Rulesets{}, f) }

// packets returns some packets to every frontend of the programs.
func packets(ps ...*ir.Program) []sim.Packet {
	var out []sim.Packet
	for _, p := range ps {
		for _, s := range p.Services {
			for _, f := range s.Frontends {
				pkt := sim.Packet{Src: p.Node.Detector.Prefix.Addr().Next(), Dst: f.Match.Addr, Protocol: f.Match.Protocol, Port: f.Match.Port, In: "cni0"}
				if f.Match.IsNodePort() {
					pkt.Dst = p.Node.IP
				}
				outside := pkt
				outside.Src, outside.In = p.Node.IP.Next(), "eth0"
				out = append(out, pkt, outside)
			}
		}
	}
	return out
}

// TestNoPacketMeetsHalfAService sends packets through the rules after each edit of random
// histories. Each packet is handled as before or as after the change.
func TestNoPacketMeetsHalfAService(t *testing.T) {
	const all = 40
	for _, most := range []int{10, 60, 1 << 20} {
		random := rand.New(rand.NewPCG(11, uint64(most)))
		full := programs(all)
		for f, p := range ir.Present(full) {
			m := &memory{empty(f)}
			before := &ir.Program{Family: f, Node: p.Node}
			old := rules.Lower(before)
			for range 4 {
				after := thinned(ir.NewPrograms(p), random).Of(f)
				want := rules.Lower(after)
				p := newPlan(rules.NewRulesets(m.state), rules.NewRulesets(want))
				for _, s := range p.families.Of(f).steps(most) {
					for _, e := range s {
						if err := m.commit(e); err != nil {
							t.Fatalf("at most %d rules: %v", most, err)
						}
						between(t, most, m.state, old, want, packets(before, after), after.Node.HasAddr)
					}
				}
				if rest := newPlan(rules.NewRulesets(m.state), rules.NewRulesets(want)); !rest.Empty() {
					t.Fatalf("at most %d rules: after commit there is still to do: %v", most, opsOf(rest))
				}
				before, old = after, want
			}
		}
	}
}

// TestEverythingGoesInSteps removes all rules, like cleanup. No chain may be removed while others
// jump to it, for any number of runs.
func TestEverythingGoesInSteps(t *testing.T) {
	for _, most := range []int{1, 10, 60, 1 << 20} {
		for _, p := range ir.Present(programs(40)) {
			have := rules.Lower(p)
			m := &memory{have}
			for _, s := range newPlan(rules.NewRulesets(have), rules.NewRulesets(empty(p.Family))).families.Of(p.Family).steps(most) {
				for _, e := range s {
					if err := m.commit(e); err != nil {
						t.Fatalf("%s, at most %d rules: %v", p.Family, most, err)
					}
				}
			}
			for _, table := range m.state.Tables() {
				for _, c := range table.Chains {
					if !rules.Shared(c.Name) {
						t.Errorf("%s, at most %d rules: %s %s is still there", p.Family, most, table.Name, c.Name)
					}
				}
			}
		}
	}
}

func between(t *testing.T, most int, now, old, want *rules.Ruleset, to []sim.Packet, local func(netip.Addr) bool) {
	t.Helper()
	is, before, after := ipteval.NewEvaluator(now, sim.OwnOf(local)), ipteval.NewEvaluator(old, sim.OwnOf(local)), ipteval.NewEvaluator(want, sim.OwnOf(local))
	for _, pkt := range to {
		got, was, will := is.Outcome(pkt, nil), before.Outcome(pkt, nil), after.Outcome(pkt, nil)
		if got.Equal(was) || got.Equal(will) {
			continue
		}
		// An address with source ranges is closed while it gets its first backend, and while it loses its
		// last.
		if got.Fate == sim.Dropped && (was.Fate != sim.Accepted || will.Fate != sim.Accepted) {
			continue
		}
		// If a change is split into runs, the chains of a Service may be in different ones. A packet may
		// then reach backends of both states.
		known := func(d sim.Destination) bool {
			return slices.Contains(was.Destinations, d) || slices.Contains(will.Destinations, d)
		}
		if most < 1<<20 && got.Fate == sim.Accepted && !slices.ContainsFunc(got.Destinations, func(d sim.Destination) bool { return !known(d) }) {
			continue
		}
		t.Errorf("at most %d rules: %v meets %s; before it was %s, then it is %s", most, pkt, got, was, will)
	}
}

func TestOperations(t *testing.T) {
	have, want := programs(3).IPv4, programs(3).IPv4
	want.Services = want.Services[1:]
	want.Services[1].Pools = nil
	want.Services[1].Frontends = want.Services[1].Frontends[:1]
	want.Services[1].Frontends[0].Routes = nil
	var got []string
	var saved strings.Builder // the node's state is known only by its text
	if err := rules.Lower(have).Write(&saved); err != nil {
		t.Fatal(err)
	}
	read, err := iptparse.Parse(have.Family, saved.String())
	if err != nil {
		t.Fatal(err)
	}
	p := newPlan(rules.NewRulesets(read), rules.NewRulesets(rules.Lower(want)))
	for _, op := range opsOf(p) {
		words := strings.Fields(op.Object)
		got = append(got, fmt.Sprintf("%s %s %s", op.Verb, op.Service, strings.Join(words[:min(len(words), 5)], " ")))
	}
	wantOps := []string{
		"add default/s2 iptables filter KUBE-SERVICES -d 10.96.0.3/32",
		"remove / iptables nat KUBE-HAIRPIN -s 10.244.0.1/32",
		"remove / iptables nat KUBE-HAIRPIN -s 10.244.0.2/32",
		"remove default/s0 iptables nat KUBE-SERVICES -d 10.96.0.1/32",
		"remove default/s2 iptables nat KUBE-SERVICES -d 10.96.0.3/32",
		"remove default/s0 iptables nat KUBE-SVC-",
		"remove default/s2 iptables nat KUBE-SVC-",
		"remove default/s2 iptables nat KUBE-SEP-",
		"remove default/s2 iptables nat KUBE-SEP-",
	}
	cut := func(s string) string {
		for _, stem := range []string{"KUBE-SVC-", "KUBE-SEP-"} {
			if i := strings.Index(s, stem); i > 0 {
				return s[:i+len(stem)]
			}
		}
		return s
	}
	for i := range got {
		got[i] = cut(got[i])
	}
	slices.Sort(got)
	slices.Sort(wantOps)
	if diff := cmp.Diff(wantOps, got); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	gone := []string{"10.96.0.1:80/tcp", "10.96.0.3:80/tcp"}
	var goneNow []string
	for _, m := range p.RemovedFrontends() {
		goneNow = append(goneNow, m.String())
	}
	if diff := cmp.Diff(gone, goneNow); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
}

// A difference in a Service's chain contains the rules that only one side has.
func TestDifferencesIncludeRules(t *testing.T) {
	want := rules.Lower(programs(1).IPv4)
	var saved strings.Builder
	if err := want.Write(&saved); err != nil {
		t.Fatal(err)
	}
	var rule string
	for line := range strings.Lines(saved.String()) {
		if strings.HasPrefix(line, "-A KUBE-SVC-") {
			rule = line
		}
	}
	chain, text, _ := strings.Cut(strings.TrimSpace(rule)[len("-A "):], " ")
	for name, tc := range map[string]struct {
		change string
		want   apply.Operation
	}{
		"inserted": {"-A " + chain + " -m mac --mac-source 00:11:22:33:44:55 -j DROP\n" + rule,
			apply.Operation{Verb: apply.Change, Have: []string{"-m mac --mac-source 00:11:22:33:44:55 -j DROP"}}},
		"deleted": {"", apply.Operation{Verb: apply.Change, Want: []string{text}}},
	} {
		read, err := iptparse.Parse(want.Family, strings.Replace(saved.String(), rule, tc.change, 1))
		if err != nil {
			t.Fatal(err)
		}
		tc.want.Object, tc.want.Service = "iptables nat "+chain, ir.Name{Namespace: "default", Name: "s0"}
		got := slices.Collect(newPlan(rules.NewRulesets(read), rules.NewRulesets(want)).Differences)
		for i := range got {
			got[i].Origin = ir.Origin{}
		}
		if diff := cmp.Diff([]apply.Operation{tc.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// samePlans compares the operations of two Plans.
func samePlans(t *testing.T, want, got *Plan, ops func(apply.Plan) []apply.Operation) {
	t.Helper()
	if diff := cmp.Diff(ops(want), ops(got)); diff != "" {
		t.Fatalf("operations (-want +got):\n%s", diff)
	}
	if !slices.Equal(want.RemovedFrontends(), got.RemovedFrontends()) {
		t.Fatalf("gone: got %v, want %v", got.RemovedFrontends(), want.RemovedFrontends())
	}
	if diff := cmp.Diff(want.tables(), got.tables()); diff != "" {
		t.Fatalf("rules (-want +got):\n%s", diff)
	}
}

// TestPlanOmitsEqualChains compares Plans of a Dataplane, which contain only differences, with
// those of complete Rulesets.
func TestPlanOmitsEqualChains(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	target := &Dataplane{lowering: ModeIPTables, tables: &tables{tools: &tools{Variant: Legacy, version: version{1, 8, 9}, families: []ir.Family{ir.IPv4, ir.IPv6}}}}
	all := programs(200)
	for range 20 {
		have, want := lower(thinned(all, random)), lower(thinned(all, random))
		got, whole := target.Difference(have, want), newPlan(have, want)
		samePlans(t, whole, got, opsOf)
	}
	have, want := lower(all), lower(all)
	for _, f := range ir.Present(target.Difference(have, want).families) {
		for _, r := range []*rules.Ruleset{f.have, f.want} {
			if n := len(r.Nat.Chains); n > 0 {
				t.Errorf("%s: a plan without a change keeps %d chains", r.Family, n)
			}
		}
	}
}

func TestJumps(t *testing.T) {
	jump := func(builtIn, to string) rules.BuiltInJump {
		return rules.BuiltInJump{Chain: builtIn, Rule: rules.Rule{Target: rules.Jump, Chain: to}}
	}
	want := []rules.BuiltInJump{jump("INPUT", "KUBE-FIREWALL"), jump("INPUT", "KUBE-NODEPORTS"), jump("INPUT", "KUBE-EXTERNAL-SERVICES"), jump("OUTPUT", "KUBE-SERVICES")}
	tests := []struct {
		name                     string
		have                     []rules.BuiltInJump
		removedJumps, addedJumps []rules.BuiltInJump
	}{
		{"nothing there", nil, nil, want},
		{"all there", want, nil, nil},
		{"the kubelet's elsewhere", append(slices.Clone(want[1:]), want[0]), nil, nil},
		{"one lacks", slices.Delete(slices.Clone(want), 1, 2), want[2:3], want[1:3]},
		{"wrong order", []rules.BuiltInJump{want[2], want[1], want[0], want[3]}, []rules.BuiltInJump{want[2], want[1]}, want[1:3]},
		{"twice", append(slices.Clone(want), want[3]), []rules.BuiltInJump{want[3], want[3]}, want[3:4]},
		{"one too many", append(slices.Clone(want), jump("PREROUTING", "KUBE-SERVICES")), []rules.BuiltInJump{jump("PREROUTING", "KUBE-SERVICES")}, nil},
	}
	for _, tt := range tests {
		removedJumps, addedJumps := diffJumps(tt.have, want)
		if diff := cmp.Diff(show(tt.removedJumps), show(removedJumps)); diff != "" {
			t.Errorf("%s: out (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(show(tt.addedJumps), show(addedJumps)); diff != "" {
			t.Errorf("%s: in (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestUnhookByText removes a jump by its text in the kernel, in which the order of matches differs
// from ours.
func TestUnhookByText(t *testing.T) {
	const jump = `-m comment --comment "kubernetes service portals" -m conntrack --ctstate NEW -j KUBE-SERVICES`
	have, err := iptparse.Parse(ir.IPv4, "*filter\n:KUBE-SERVICES - [0:0]\n-A INPUT "+jump+"\nCOMMIT\n")
	if err != nil {
		t.Fatal(err)
	}
	steps := newPlan(rules.NewRulesets(have), lower(programs(0))).families.IPv4.steps(1000)
	if got := string(steps[0].input(ir.IPv4).text()); !strings.Contains(got, "\n-D INPUT "+jump+"\n") {
		t.Errorf("not taken out:\n%s", got)
	}
}

func show(jumps []rules.BuiltInJump) (out []string) {
	for _, h := range jumps {
		out = append(out, h.Chain+" to "+h.Rule.Chain)
	}
	return out
}

// TestFirewallIsTheKubeletsToo has a rule of the kubelet in its shared chain.
func TestFirewallIsTheKubeletsToo(t *testing.T) {
	want := lower(programs(0))
	have, err := iptparse.Parse(ir.IPv4, "*filter\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\nCOMMIT\n")
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{have}
	for _, s := range newPlan(rules.NewRulesets(have), want).families.IPv4.steps(1000) {
		for _, e := range s {
			if err := m.commit(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range m.state.Filter.Chains {
		if c.Name == "KUBE-FIREWALL" && (len(c.Rules) != 2 || c.Rules[0].Mark.Value != 0x8000) {
			t.Errorf("KUBE-FIREWALL: got %d rules", len(c.Rules))
		}
	}
	if rest := newPlan(rules.NewRulesets(m.state), rules.NewRulesets(want.IPv4)); !rest.Empty() {
		t.Errorf("still to do: %v", opsOf(rest))
	}
	without := programs(0).IPv4
	without.Node.NodePorts.Loopback = false
	for _, op := range opsOf(newPlan(rules.NewRulesets(m.state), rules.NewRulesets(rules.Lower(without)))) {
		if op.Verb == apply.Remove && strings.Contains(op.Object, "KUBE-FIREWALL") {
			t.Errorf("takes from the kubelet: %s", op.Object)
		}
	}
}

func TestLineOf(t *testing.T) {
	text := []byte("*nat\n-A KUBE-SERVICES -j X\nCOMMIT\n")
	tests := []struct {
		message string
		number  int
		line    string
	}{
		{"iptables-nft-restore: \nline 2: RULE_APPEND failed (No such file or directory)", 2, "-A KUBE-SERVICES -j X"},
		{"Bad argument\nError occurred at line: 2\nTry -h", 2, "-A KUBE-SERVICES -j X"},
		{"iptables-restore: line 3 failed", 0, ""},
		{"iptables-restore: line 99 failed", 0, ""},
		{"iptables-restore: out of memory", 0, ""},
	}
	for _, tt := range tests {
		if number, line := lineOf(tt.message, text); number != tt.number || line != tt.line {
			t.Errorf("%q: got %d, %q, want %d, %q", tt.message, number, line, tt.number, tt.line)
		}
	}
}

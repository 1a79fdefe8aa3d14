package apply_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
)

func interference(t *testing.T, c apply.ForeignChain, chains map[string][]apply.RuleEffect) (got apply.Interference) {
	t.Helper()
	c.Name, c.Where = "base", "where"
	c.Rules = func(chain string) ([]apply.RuleEffect, error) { return chains[chain], nil }
	if err := got.Add(c, 0x4000); err != nil {
		t.Fatal(err)
	}
	return got
}

// The nearest chain with a dropping rule is reported. Loops end.
func TestInterferenceDrops(t *testing.T) {
	for _, c := range []struct {
		base []apply.RuleEffect
		want []string
	}{
		{[]apply.RuleEffect{{To: "a"}, {To: "gone"}, {To: "b"}}, []string{"where: reject in chain b"}},
		{[]apply.RuleEffect{{To: "base"}, {To: "far"}}, []string{"where: DROP in chain far"}},
		{[]apply.RuleEffect{{To: "base"}}, nil},
		{[]apply.RuleEffect{{To: "gone"}}, nil},
	} {
		got := interference(t, apply.ForeignChain{}, map[string][]apply.RuleEffect{
			"base": c.base,
			"a":    {{To: "base"}, {To: "far"}},
			"b":    {{Does: "accept"}, {Does: "reject"}},
			"far":  {{Does: "DROP"}},
		})
		if d := cmp.Diff(apply.Interference{Drops: c.want}, got); d != "" {
			t.Errorf("%v (-want +got):\n%s", c.base, d)
		}
	}
	got := interference(t, apply.ForeignChain{Policy: "policy drop"}, map[string][]apply.RuleEffect{"base": {{Does: "DROP"}}})
	if d := cmp.Diff(apply.Interference{Drops: []string{"where: policy drop"}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Rules that translate before ours divert. If the chain jumps to ours, so do accepting rules, but
// only before the jump.
func TestInterferenceDiverts(t *testing.T) {
	ours := apply.RuleEffect{To: "KUBE-SERVICES"}
	for _, c := range []struct {
		rules []apply.RuleEffect
		want  string
	}{
		{[]apply.RuleEffect{ours, {Does: "DNAT"}, {Does: "ACCEPT"}, {To: "far"}}, ""},
		{[]apply.RuleEffect{{Does: "DNAT"}, ours}, "DNAT in chain base"},
		{[]apply.RuleEffect{{Does: "ACCEPT"}, ours}, "ACCEPT in chain base"},
		{[]apply.RuleEffect{{Does: "RETURN"}, ours}, "RETURN in chain base"},
		{[]apply.RuleEffect{{Does: "return"}}, ""},
		{[]apply.RuleEffect{{To: "near"}, ours}, ""}, // returns to the base chain
		{[]apply.RuleEffect{{To: "far"}, ours}, "notrack in chain far"},
		{[]apply.RuleEffect{{Does: "accept"}}, ""},
		{[]apply.RuleEffect{{Does: "redirect"}}, "redirect in chain base"},
	} {
		chains := map[string][]apply.RuleEffect{"base": c.rules, "far": {{Does: "notrack"}}, "near": {{Does: "return"}}}
		checkDiverts(t, c.rules, c.want, interference(t, apply.ForeignChain{Translates: true}, chains))
		checkDiverts(t, c.rules, "", interference(t, apply.ForeignChain{Marks: true}, chains))
	}
}

// Rules that clear the mark are reported in any chain. If the base chain jumps to ours, only those
// before the jump are.
func TestInterferenceWithMark(t *testing.T) {
	ours := apply.RuleEffect{To: "KUBE-POSTROUTING"}
	clears := apply.RuleEffect{Does: "MARK", Clears: 0xffffffff}
	for _, c := range []struct {
		rules []apply.RuleEffect
		want  string
	}{
		{[]apply.RuleEffect{{Does: "accept"}, clears}, "clears mark 0x4000 in chain base"},
		{[]apply.RuleEffect{{Does: "MARK", Clears: 0xffffbfff}}, ""},
		{[]apply.RuleEffect{clears, ours}, "clears mark 0x4000 in chain base"},
		{[]apply.RuleEffect{ours, clears}, ""},
		{[]apply.RuleEffect{{To: "far"}}, "clears mark 0x4000 in chain far"},
	} {
		chains := map[string][]apply.RuleEffect{"base": c.rules, "far": {clears}}
		checkDiverts(t, c.rules, c.want, interference(t, apply.ForeignChain{Marks: true}, chains))
		checkDiverts(t, c.rules, "", interference(t, apply.ForeignChain{Translates: true}, chains))
	}
}

func checkDiverts(t *testing.T, rules []apply.RuleEffect, want string, got apply.Interference) {
	t.Helper()
	var diverts []string
	if want != "" {
		diverts = []string{"where: " + want}
	}
	if d := cmp.Diff(apply.Interference{Diverts: diverts}, got); d != "" {
		t.Errorf("%v (-want +got):\n%s", rules, d)
	}
}

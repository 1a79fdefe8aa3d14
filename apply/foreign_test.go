package apply_test

import (
	"testing"

	"github.com/proxyc/proxyc/apply"
)

// The nearest chain that drops is found, round chains that lead to each other.
func TestFindRule(t *testing.T) {
	chains := map[string][]apply.RuleEffect{
		"input": {{To: "a"}, {To: "gone"}, {To: "b"}},
		"a":     {{To: "input"}, {To: "far"}},
		"b":     {{Does: "accept"}, {Does: "reject"}},
		"far":   {{Does: "DROP"}},
		"loop":  {{To: "loop"}},
	}
	for base, want := range map[string][2]string{"input": {"b", "reject"}, "a": {"far", "DROP"}, "loop": {}, "gone": {}} {
		in, does, err := apply.FindRule(base, func(chain string) ([]apply.RuleEffect, error) { return chains[chain], nil }, apply.RuleEffect.Drops)
		if got := [2]string{in, does}; err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", base, got, err, want)
		}
	}
}

// What translates before ours diverts; what accepts does where the table goes on to
// ours; what comes after them does not.
func TestFindDiversion(t *testing.T) {
	ours := apply.RuleEffect{To: "KUBE-SERVICES"}
	for _, c := range []struct {
		rules []apply.RuleEffect
		want  string
	}{
		{[]apply.RuleEffect{ours, {Does: "DNAT"}, {Does: "ACCEPT"}, {To: "far"}}, ""},
		{[]apply.RuleEffect{{Does: "DNAT"}, ours}, "DNAT"},
		{[]apply.RuleEffect{{Does: "ACCEPT"}, ours}, "ACCEPT"},
		{[]apply.RuleEffect{{To: "far"}, ours}, "notrack"},
		{[]apply.RuleEffect{{Does: "drop"}, {Does: "snat"}, ours}, ""},
		{[]apply.RuleEffect{{Does: "accept"}}, ""},
		{[]apply.RuleEffect{{Does: "redirect"}}, "redirect"},
	} {
		chains := map[string][]apply.RuleEffect{"base": c.rules, "far": {{Does: "notrack"}}}
		_, does, err := apply.FindDiversion("base", func(chain string) ([]apply.RuleEffect, error) { return chains[chain], nil })
		if err != nil || does != c.want {
			t.Errorf("%v: got %q, %v, want %q", c.rules, does, err, c.want)
		}
	}
}

// What clears the mark counts, wherever that is; where the table goes on to ours, before them alone.
func TestFindUnmark(t *testing.T) {
	const mark = 0x4000
	ours := apply.RuleEffect{To: "KUBE-POSTROUTING"}
	clears := apply.RuleEffect{Does: "MARK", Clears: 0xffffffff}
	for _, c := range []struct {
		rules []apply.RuleEffect
		want  string // the chain
	}{
		{[]apply.RuleEffect{{Does: "accept"}, clears}, "base"},
		{[]apply.RuleEffect{{Does: "MARK", Clears: ^uint32(mark)}}, ""},
		{[]apply.RuleEffect{clears, ours}, "base"},
		{[]apply.RuleEffect{ours, clears}, ""},
		{[]apply.RuleEffect{{To: "far"}}, "far"},
	} {
		chains := map[string][]apply.RuleEffect{"base": c.rules, "far": {clears}}
		in, err := apply.FindUnmark("base", mark, func(chain string) ([]apply.RuleEffect, error) { return chains[chain], nil })
		if err != nil || in != c.want {
			t.Errorf("%v: got %q, %v, want %q", c.rules, in, err, c.want)
		}
	}
}

package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rules "github.com/proxyc/proxyc/render/iptables"
)

// counted returns the number of rules in the chains of a family's tables, from the text that loads
// them.
func counted(t *testing.T, r *rules.Ruleset) map[string]int {
	t.Helper()
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	n, table := map[string]int{}, ""
	for line := range strings.Lines(text.String()) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		} else if strings.HasPrefix(line, "-A KUBE-") {
			n[table]++
		}
	}
	return n
}

func TestTables(t *testing.T) {
	all := programs(3).IPv4
	want := counted(t, rules.Lower(all))
	if want["nat"] < 10 || want["filter"] == 0 {
		t.Fatalf("too few rules to tell: %v", want)
	}
	get := func(p *Plan) (total, written map[string]int) {
		total, written = map[string]int{}, map[string]int{}
		for _, c := range p.tables() {
			if c.Family != all.Family {
				t.Errorf("a count of %s", c.Family)
			}
			total[c.Table], written[c.Table] = c.Rules, c.Written
		}
		return total, written
	}
	total, written := get(newPlan(rules.Rulesets{}, rules.NewRulesets(rules.Lower(all))))
	if diff := cmp.Diff([]map[string]int{want, want}, []map[string]int{total, written}); diff != "" {
		t.Errorf("the first load: all, and those written (-want +got):\n%s", diff)
	}
	total, written = get(newPlan(rules.NewRulesets(rules.Lower(all)), rules.NewRulesets(rules.Lower(all))))
	if diff := cmp.Diff([]map[string]int{want, {"nat": 0, "filter": 0}}, []map[string]int{total, written}); diff != "" {
		t.Errorf("nothing to do: all, and those written (-want +got):\n%s", diff)
	}
	less := programs(3).IPv4
	less.Services = less.Services[:2]
	total, written = get(newPlan(rules.NewRulesets(rules.Lower(all)), rules.NewRulesets(rules.Lower(less))))
	if total["nat"] >= want["nat"] || written["nat"] == 0 || written["nat"] >= total["nat"] {
		t.Errorf("a Service went: %d rules of nat, %d of them written, before %d", total["nat"], written["nat"], want["nat"])
	}
}

package parse

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// ParseWhole reads what iptables-save or ip6tables-save printed with the chains of
// everybody: built-in ones have all their rules, their policy DROP as the last. left names
// other tables that have rules, and are not followed.
func ParseWhole(f ir.Family, saved string) (r *iptables.Ruleset, left []string, err error) {
	p := NewParser(f)
	p.whole = true
	io.WriteString(p, saved) // gives no error
	if r, err = p.Ruleset(); err != nil {
		return nil, nil, err
	}
	for _, t := range r.Tables() {
		for i := range t.Chains {
			if c := &t.Chains[i]; p.drops[t.Name+" "+c.Name] {
				c.Rules = append(slices.Clip(c.Rules), iptables.Rule{Target: iptables.Drop})
			}
		}
	}
	return r, Unfollowed(saved, r.Filter.Name, r.Nat.Name), nil
}

// Unfollowed names the tables, of those that iptables-save or ip6tables-save printed, that hold
// something by which packets may fare otherwise: all but those that are followed.
func Unfollowed(saved string, followed ...string) (left []string) {
	table, rules, policies := "", map[string]int{}, map[string]string{}
	for line := range strings.Lines(saved) {
		words := SavedWords(strings.TrimSpace(line))
		switch {
		case strings.HasPrefix(line, "*"):
			table = strings.TrimSpace(line[1:])
		case slices.Contains(followed, table):
		case strings.HasPrefix(line, "-A "):
			rules[table]++
		case strings.HasPrefix(line, ":") && len(words) > 1 && words[1] == "DROP":
			policies[table] = words[0][1:]
		}
	}
	for table, n := range rules {
		left = append(left, fmt.Sprintf("table %s has %s, which may drop, mark or translate packets", table, count(n)))
	}
	for table, chain := range policies {
		left = append(left, fmt.Sprintf("table %s has the policy DROP in chain %s", table, chain))
	}
	slices.Sort(left)
	return left
}

func count(rules int) string {
	if rules == 1 {
		return "1 rule"
	}
	return fmt.Sprintf("%d rules", rules)
}

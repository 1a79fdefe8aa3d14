package parse

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// ParseWhole parses the output of iptables-save or ip6tables-save with the chains
// of all programs. Built-in chains contain all their rules, and a policy DROP as
// the last rule. left contains other tables with rules, which are not evaluated.
func ParseWhole(f ir.Family, saved string) (r *iptables.Ruleset, left []string, err error) {
	p := NewParser(f)
	p.drops = map[string]bool{}
	io.WriteString(p, saved) // never fails
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

// Unfollowed returns the tables in the output of iptables-save or ip6tables-save
// that may affect packets and are not in followed.
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

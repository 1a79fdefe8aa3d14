package iptables

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// ParseWhole reads what iptables-save or ip6tables-save printed with the chains of
// everybody: built-in ones have all their rules, their policy DROP as the last. left names
// other tables that have rules, and are not followed.
func ParseWhole(f ir.Family, saved string) (r *Ruleset, left []string, err error) {
	p := NewParser(f)
	p.whole = true
	io.WriteString(p, saved) // gives no error
	if r, err = p.Ruleset(); err != nil {
		return nil, nil, err
	}
	for _, t := range r.Tables() {
		for i := range t.Chains {
			if c := &t.Chains[i]; p.drops[t.Name+" "+c.Name] {
				c.Rules = append(slices.Clip(c.Rules), Rule{Target: Drop})
			}
		}
	}
	table, rules := "", map[string]int{}
	for line := range strings.Lines(saved) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		} else if strings.HasPrefix(line, "-A ") && table != r.Filter.Name && table != r.Nat.Name {
			rules[table]++
		}
	}
	for table, n := range rules {
		left = append(left, fmt.Sprintf("table %s: %d rules, which may drop or mark packets before", table, n))
	}
	slices.Sort(left)
	return r, left, nil
}

// Met is a rule that did something to a packet.
type Met struct {
	Table, Chain string
	Rule         int    // from 1; 0: the policy
	Text         string // as iptables-save prints it
	Drops        bool
}

// Follower tells which rules packets meet under a Ruleset that ParseWhole read, or one of
// ours.
type Follower struct {
	family ir.Family
	walker *Walker
}

// NewFollower indexes the rules, which costs what they are.
func NewFollower(r *Ruleset, own *sim.Own) *Follower {
	return &Follower{r.Family, &Walker{own: own, filter: indexed(&r.Filter, 0), nat: indexed(&r.Nat, 0), mostRules: 1 << 20, mostWays: 1 << 16}}
}

// Follow returns what becomes of a packet, with the rules that it meets on the first of the
// ways that chance may lead it and on one to another fate; and what is not understood on its way.
func (f *Follower) Follow(pkt sim.Packet) (o sim.Outcome, met []Met, unknown []string) {
	var cuts sim.Cuts
	t := &trip{}
	t.tell = func(c *chain, i int) {
		rule := c.rules[i].Rule
		m := Met{c.name, c.name, i + 1, rule.Raw, rule.Target == Drop || rule.Target == Reject}
		if m.Table = c.table; m.Text == "" {
			m.Text = strings.TrimSpace(string(rule.Append(nil, f.family)))
		}
		if m.Text == "-j DROP" && i+1 == len(c.rules) && builtIn(c.name) {
			m.Rule, m.Text = 0, "policy DROP"
		}
		if !slices.Contains(met, m) {
			met = append(met, m)
		}
	}
	var chances []sim.Chance
	for _, end := range f.walker.journey(Packet{Packet: pkt, Chance: 1, Cuts: &cuts, trip: t}) {
		way := end.way()
		chances = append(chances, way.Chance)
	}
	if cuts.Endless != "" {
		cuts.Unknown = append(cuts.Unknown, cuts.Endless)
	}
	slices.Sort(cuts.Unknown)
	return sim.Shared(chances), met, slices.Compact(cuts.Unknown)
}

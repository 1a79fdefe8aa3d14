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

// Disarmed returns the Ruleset with rules that do nothing: those that gone holds, by the Table,
// Chain and Rule of Met.
func (r *Ruleset) Disarmed(gone func(table, chain string, rule int) bool) *Ruleset {
	rest := *r
	for _, t := range rest.Tables() {
		t.Chains = slices.Clone(t.Chains)
		for i := range t.Chains {
			c, own := &t.Chains[i], false
			for j := range c.Rules {
				n := j + 1
				if builtIn(c.Name) && n == len(c.Rules) && c.Rules[j].isPolicy() {
					n = 0
				}
				if !gone(t.Name, c.Name, n) {
					continue
				}
				if !own {
					c.Rules, own = slices.Clone(c.Rules), true
				}
				c.Rules[j] = Rule{}
			}
		}
	}
	return &rest
}

// isPolicy reports whether a rule does what a policy does.
func (r *Rule) isPolicy() bool { return *r == Rule{Target: Drop} }

// Met is a rule that did something to a packet.
type Met struct {
	Table, Chain string
	Rule         int    // from 1; 0: the policy
	Text         string // as iptables-save prints it
	Drops        bool
	Leads        bool // to a chain, or back to the one that called it: it decides nothing
}

// Plain is Walker, but for chains that stay as they are: each rule is looked at in turn, so
// that it can be told of.
func (r *Ruleset) Plain(own *sim.Own, has func(p *Packet, set InSet) bool) *Walker {
	return &Walker{own: own, has: has, filter: indexed(&r.Filter, 0), nat: indexed(&r.Nat, 0), mostRules: 1 << 20, mostWays: 1 << 16}
}

// Telling returns a packet for a Plain Walker of a family's rules: tell is called with each rule
// that does something to it.
func (p Packet) Telling(f ir.Family, tell func(Met)) Packet {
	p.trip = &trip{tell: func(c *chain, i int) {
		rule := c.rules[i].Rule
		m := Met{c.table, c.name, i + 1, rule.Raw, rule.Target == Drop || rule.Target == Reject,
			rule.Target == Jump || rule.Target == Return && !builtIn(c.name)}
		if m.Text == "" {
			one := *rule
			one.CommentLast = false // nobody can tell of rules that were read
			m.Text = strings.TrimSpace(string(one.Append(nil, f)))
		}
		if i+1 == len(c.rules) && builtIn(c.name) && rule.isPolicy() {
			m.Rule, m.Text = 0, "policy DROP"
		}
		tell(m)
	}}
	return p
}

// Follower tells which rules packets meet under a Ruleset that ParseWhole read, or one of
// ours.
type Follower struct {
	family ir.Family
	walker *Walker
}

// NewFollower indexes the rules, which costs what they are.
func NewFollower(r *Ruleset, own *sim.Own) *Follower {
	return &Follower{r.Family, r.Plain(own, nil)}
}

// Follow returns what becomes of a packet, with the rules that it meets on the first of the
// ways that chance may lead it and on one to another fate; and what is not understood on its way.
// mark is what it has from others, before.
func (f *Follower) Follow(pkt sim.Packet, mark uint32) (o sim.Outcome, met []Met, unknown []string) {
	return f.follow(pkt, mark, false)
}

// FollowTranslated is Follow for a packet that has its destination from others, before the nat
// table.
func (f *Follower) FollowTranslated(pkt sim.Packet, mark uint32) (o sim.Outcome, met []Met, unknown []string) {
	return f.follow(pkt, mark, true)
}

func (f *Follower) follow(pkt sim.Packet, mark uint32, translated bool) (o sim.Outcome, met []Met, unknown []string) {
	var cuts sim.Cuts
	start := Packet{Packet: pkt, Mark: mark, DNAT: translated, Chance: 1, Cuts: &cuts}.Telling(f.family, func(m Met) {
		if !slices.Contains(met, m) {
			met = append(met, m)
		}
	})
	var chances []sim.Chance
	for _, end := range f.walker.journey(start) {
		way := end.way()
		chances = append(chances, way.Chance)
	}
	return sim.Shared(chances), met, cuts.Doubts()
}

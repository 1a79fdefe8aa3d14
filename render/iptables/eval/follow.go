package eval

import (
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// Disarmed returns a Ruleset with rules that do nothing: those that gone holds, by the Table,
// Chain and Rule of Met.
func Disarmed(r *iptables.Ruleset, gone func(table, chain string, rule int) bool) *iptables.Ruleset {
	rest := *r
	for _, t := range rest.Tables() {
		t.Chains = slices.Clone(t.Chains)
		for i := range t.Chains {
			c, own := &t.Chains[i], false
			for j := range c.Rules {
				n := j + 1
				if iptables.BuiltIn(c.Name) && n == len(c.Rules) && isPolicy(&c.Rules[j]) {
					n = 0
				}
				if !gone(t.Name, c.Name, n) {
					continue
				}
				if !own {
					c.Rules, own = slices.Clone(c.Rules), true
				}
				c.Rules[j] = iptables.Rule{}
			}
		}
	}
	return &rest
}

// isPolicy reports whether a rule does what a policy does.
func isPolicy(r *iptables.Rule) bool { return *r == iptables.Rule{Target: iptables.Drop} }

// Met is a rule that did something to a packet.
type Met struct {
	Table, Chain string
	Rule         int    // from 1; 0: the policy
	Text         string // as iptables-save prints it
	Drops        bool
	Leads        bool // to a chain, or back to the one that called it: it decides nothing
}

// NewPlain is NewWalker, but for chains that stay as they are: each rule is looked at in turn, so
// that it can be told of.
func NewPlain(r *iptables.Ruleset, own *sim.Own, has func(p *Packet, set iptables.InSet) bool) *Walker {
	return &Walker{own: own, has: has, filter: indexed(&r.Filter, 0), nat: indexed(&r.Nat, 0), mostRules: 1 << 20, mostWays: 1 << 16}
}

// Telling returns a packet for a Walker that NewPlain made of a family's rules: tell is called with each rule
// that does something to it.
func (p Packet) Telling(f ir.Family, tell func(Met)) Packet {
	p.trip = &trip{tell: func(c *chain, i int) {
		rule := c.rules[i].Rule
		m := Met{c.table, c.name, i + 1, rule.Raw, rule.Target == iptables.Drop || rule.Target == iptables.Reject,
			rule.Target == iptables.Jump || rule.Target == iptables.Return && !iptables.BuiltIn(c.name)}
		if m.Text == "" {
			one := *rule
			one.CommentLast = false // nobody can tell of rules that were read
			m.Text = strings.TrimSpace(string(one.Append(nil, f)))
		}
		if i+1 == len(c.rules) && iptables.BuiltIn(c.name) && isPolicy(rule) {
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
func NewFollower(r *iptables.Ruleset, own *sim.Own) *Follower {
	return &Follower{r.Family, NewPlain(r, own, nil)}
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

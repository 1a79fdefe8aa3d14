package eval

import (
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// Disarmed returns a Ruleset in which the rules selected by gone have no effect.
// gone is called with the Table, Chain and Rule of sim.Met.
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

// isPolicy reports whether a rule is equivalent to a policy.
func isPolicy(r *iptables.Rule) bool { return *r == iptables.Rule{Target: iptables.Drop} }

// NewPlain is NewWalker without lookups and merged chains. Every rule is
// evaluated in turn, so that each can be reported.
func NewPlain(r *iptables.Ruleset, own *sim.Own, has func(p *Packet, set iptables.InSet) bool) *Walker {
	return &Walker{own: own, has: has, filter: indexed(&r.Filter, 0), nat: indexed(&r.Nat, 0), maxRules: 1 << 20, maxWays: 1 << 16}
}

// Reporting returns a packet for a Walker from NewPlain. tell is called with each
// rule that affects the packet.
func (p Packet) Reporting(f ir.Family, report func(sim.Met)) Packet {
	p.trip = &trip{report: func(c *chain, i int) {
		rule := c.rules[i].Rule
		m := sim.Met{Table: c.table, Chain: c.name, Rule: i + 1, Text: rule.Raw, Drops: rule.Target == iptables.Drop || rule.Target == iptables.Reject,
			Forwards: rule.Target == iptables.Jump || rule.Target == iptables.Return && !iptables.BuiltIn(c.name)}
		if m.Text == "" {
			one := *rule
			one.CommentLast = false // the order in parsed rules is unknown
			m.Text = strings.TrimSpace(string(one.Append(nil, f)))
		}
		if i+1 == len(c.rules) && iptables.BuiltIn(c.name) && isPolicy(rule) {
			m.Rule, m.Text = 0, "policy DROP"
		}
		report(m)
	}}
	return p
}

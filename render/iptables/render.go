package iptables

import (
	"io"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Rulesets are the Rulesets of a node. A Ruleset is nil if the kernel has no
// tables of the family.
type Rulesets struct{ ir.PerFamily[*Ruleset] }

// NewRulesets returns the given Rulesets by family.
func NewRulesets(of ...*Ruleset) (all Rulesets) {
	for _, r := range of {
		*all.At(r.Family) = r
	}
	return all
}

// LowerAll returns the Rulesets of a node's Programs.
func LowerAll(programs ir.Programs) Rulesets { return Rulesets{render.Each(programs, Lower)} }

// Outputs returns a text for each family. The line of a jump equals that in
// iptables-save, except for -I in place of -A. Load relies on that.
func (s Rulesets) Outputs() []render.Output {
	var outputs []render.Output
	for _, r := range ir.Present(s.PerFamily) {
		outputs = append(outputs, Output(r.Family, r.Write))
	}
	return outputs
}

// Output returns the text of a family's rules, which write writes.
func Output(f ir.Family, write func(io.Writer) error) render.Output {
	file := Tool(f) + ".rules"
	return render.Output{Format: Tool(f), File: file, Load: Load(f, file), Write: write}
}

// Tool returns the program that loads a family's rules.
func Tool(f ir.Family) string { return ir.Pick(f, "iptables", "ip6tables") }

// Load returns the shell command that loads a file written by Write. It is
// idempotent: it replaces our chains, and omits jumps from built-in chains that
// the kernel already has. The list of these jumps ends with a line that occurs in
// no text, because busybox's grep prints nothing if its pattern list is empty.
func Load(f ir.Family, file string) string {
	tool := Tool(f)
	return `{ ` + tool + `-save | sed -n 's/^-A \([A-Z]* .*-j KUBE-\)/-I \1/p'; echo '#'; } | grep -vxFf - ` + file + ` | ` + tool + `-restore --noflush`
}

// Explain adds an entry with the reason for every rule in our chains.
func (s Rulesets) Explain(add func(render.Entry)) {
	for _, r := range ir.Present(s.PerFamily) {
		for _, t := range r.Tables() {
			for i := range t.Chains {
				r.explain(t, &t.Chains[i], add)
			}
		}
	}
}

// Explain adds an entry with the reason for every rule, including those in
// built-in chains.
func (r *Ruleset) Explain(add func(render.Entry)) {
	for _, t := range r.Tables() {
		for _, c := range slices.Concat(t.Chains, t.builtIn()) {
			r.explain(t, &c, add)
		}
	}
}

// builtIn returns the built-in chains with our jumps.
func (t *Table) builtIn() (chains []Chain) {
	for _, name := range BuiltInChains() {
		c := Chain{Name: name}
		for _, h := range t.Jumps {
			if h.Chain == name {
				c.Rules = append(c.Rules, h.Rule)
			}
		}
		chains = append(chains, c)
	}
	return chains
}

// explain adds the entries of a chain. Where is the tool, the table, the chain
// and the rule's number in iptables -L --line-numbers. Text is the output of
// iptables -S after the chain.
func (r *Ruleset) explain(t *Table, c *Chain, add func(render.Entry)) {
	where := Tool(r.Family) + " " + t.Name + " " + c.Name + " "
	for j := range c.Rules {
		rule := &c.Rules[j]
		e := render.Entry{Where: where + strconv.Itoa(j+1), Text: string(rule.Append(nil, r.Family))}
		if rule.match != nil {
			e.Match = rule.match.String()
		}
		e.Port, e.Origin = rule.Why()
		add(e)
	}
}

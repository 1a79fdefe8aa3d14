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
		tool := Tool(r.Family)
		file := tool + ".rules"
		outputs = append(outputs, render.Output{
			Format: tool,
			File:   file,
			Load:   Load(r.Family, file),
			Write: func(w io.Writer) error {
				_, err := r.WriteTo(w)
				return err
			},
		})
	}
	return outputs
}

// Tool returns the program that loads a family's rules.
func Tool(f ir.Family) string {
	if f == ir.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Load returns the shell command that loads a file written by WriteTo. It is
// idempotent: it replaces our chains, and omits jumps from built-in chains that
// the kernel already has. The list of these jumps ends with a line that occurs in
// no text, because busybox's grep prints nothing if its pattern list is empty.
func Load(f ir.Family, file string) string {
	tool := Tool(f)
	return `{ ` + tool + `-save | sed -n 's/^-A \([A-Z]* .*-j KUBE-\)/-I \1/p'; echo '#'; } | grep -vxFf - ` + file + ` | ` + tool + `-restore --noflush`
}

// Explain yields an entry with the reason for every rule in our chains.
func (s Rulesets) Explain(yield func(render.Entry) bool) {
	for _, r := range ir.Present(s.PerFamily) {
		for _, t := range r.Tables() {
			for i := range t.Chains {
				if !r.explain(t, &t.Chains[i], yield) {
					return
				}
			}
		}
	}
}

// Explain yields an entry with the reason for every rule, including those in
// built-in chains. It returns false if yield did.
func (r *Ruleset) Explain(yield func(render.Entry) bool) bool {
	for _, t := range r.Tables() {
		for _, c := range slices.Concat(t.Chains, t.builtIn()) {
			if !r.explain(t, &c, yield) {
				return false
			}
		}
	}
	return true
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

// explain yields the entries of a chain. Where is the tool, the table, the chain
// and the rule's number in iptables -L --line-numbers. Text is the output of
// iptables -S after the chain.
func (r *Ruleset) explain(t *Table, c *Chain, yield func(render.Entry) bool) bool {
	where := Tool(r.Family) + " " + t.Name + " " + c.Name + " "
	for j := range c.Rules {
		rule := &c.Rules[j]
		e := render.Entry{Where: where + strconv.Itoa(j+1), Text: string(rule.Append(nil, r.Family))}
		if rule.match != nil {
			e.Match = rule.match.String()
		}
		e.Port, e.Origin = rule.Why()
		if !yield(e) {
			return false
		}
	}
	return true
}

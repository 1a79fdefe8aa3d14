package iptables

import (
	"io"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Rulesets are the Rulesets of a node; nil where the kernel has no tables of a
// family.
type Rulesets struct{ ir.PerFamily[*Ruleset] }

// NewRulesets returns the Rulesets in the place of their families.
func NewRulesets(of ...*Ruleset) (all Rulesets) {
	for _, r := range of {
		*all.At(r.Family) = r
	}
	return all
}

// LowerAll returns the tables that the Programs of a node want.
func LowerAll(programs ir.Programs) Rulesets { return Rulesets{render.Each(programs, Lower)} }

// Outputs returns a text for each family. A jump's line in the text is its line
// in iptables-save, but for -I in place of -A: Load counts on that.
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

// Tool returns the program that a family's rules are for.
func Tool(f ir.Family) string {
	if f == ir.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Load returns the shell command that loads what WriteTo wrote to a file. It can
// be given again and again: our chains are replaced, and jumps from built-in
// chains that the kernel has already are left out of the text. The list of
// these ends with a line that is in no text, as the grep of busybox prints
// nothing at all when it is empty.
func Load(f ir.Family, file string) string {
	tool := Tool(f)
	return `{ ` + tool + `-save | sed -n 's/^-A \([A-Z]* .*-j KUBE-\)/-I \1/p'; echo '#'; } | grep -vxFf - ` + file + ` | ` + tool + `-restore --noflush`
}

// Explain says of every rule in our chains why it is there.
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

// Explain says of every rule why it is there, those in built-in chains
// included, until yield returns false; then it returns that.
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

// builtIn returns the built-in chains with our jumps in them.
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

// explain does so for a chain. Where is the tool, the table, the chain, and the
// rule's number in it, as iptables -L --line-numbers counts; Text is what
// iptables -S has behind the chain.
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

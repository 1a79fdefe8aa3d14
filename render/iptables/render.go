package iptables

import (
	"io"
	"strconv"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/xtables"
)

// Renderer is the back end of the iptables mode.
var Renderer = render.Renderer{Mode: ir.ModeIPTables, Lower: func(programs ir.Programs) render.Rendered { return LowerAll(programs) }}

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

// Outputs gives a text for each family. A jump's line in the text is its line
// in iptables-save, but for -I in place of -A: xtables.Load counts on that.
func (s Rulesets) Outputs() []render.Output {
	var outputs []render.Output
	for _, r := range ir.Present(s.PerFamily) {
		tool := Tool(r.Family)
		file := tool + ".rules"
		outputs = append(outputs, render.Output{
			Format: tool,
			File:   file,
			Load:   xtables.Load(r.Family, file),
			Write: func(w io.Writer) error {
				_, err := r.WriteTo(w)
				return err
			},
		})
	}
	return outputs
}

// Tool is the program that a family's rules are for.
func Tool(f ir.Family) string { return xtables.Tool(f) }

// Explain says of every rule in our chains why it is there. Where is the tool,
// the table, the chain, and the rule's number in it, as iptables -L
// --line-numbers counts; Text is what iptables -S has behind the chain.
func (s Rulesets) Explain(yield func(render.Entry) bool) {
	for _, r := range ir.Present(s.PerFamily) {
		for _, t := range r.Tables() {
			for i := range t.Chains {
				if !t.Chains[i].explain(r.Family, t.Name, yield) {
					return
				}
			}
		}
	}
}

func (c *Chain) explain(f ir.Family, table string, yield func(render.Entry) bool) bool {
	where := Tool(f) + " " + table + " " + c.Name + " "
	for j := range c.Rules {
		r := &c.Rules[j]
		e := render.Entry{Where: where + strconv.Itoa(j+1), Text: string(r.Append(nil, f)), Match: r.match()}
		e.Port, e.Origin = r.Why()
		if !yield(e) {
			return false
		}
	}
	return true
}

// match is the frontend that a rule takes packets of, if it is one's.
func (r *Rule) match() string {
	if r.port == nil || r.Ports == (PortRange{}) {
		return ""
	}
	return ir.Match{Addr: r.Dst.Addr(), Protocol: r.Protocol, Port: r.Ports.First}.String()
}

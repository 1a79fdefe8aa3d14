package nftables

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Memory is what a daemon knows of the tables that it keeps: a State for each
// family (see apply/loop).
type Memory struct{ states ir.PerFamily[*State] }

// Lower gives the tables that the programs want.
func (m *Memory) Lower(programs ir.Programs) rules.Tables {
	return rules.LowerAll(programs)
}

// Remember notes that the kernel holds the programs.
func (m *Memory) Remember(programs ir.Programs) {
	m.states = ir.PerFamily[*State]{}
	for f, p := range ir.Present(programs) {
		s := NewState(f)
		for j := range p.Services {
			s.Update(&p.Node, ir.Change{Name: p.Services[j].Name, New: &p.Services[j]})
		}
		*m.states.At(f) = s
	}
}

// Plan gives what leads from what is remembered to the programs, which differ
// from it by changes, and remembers them.
func (m *Memory) Plan(programs ir.Programs, changes ir.Changes) apply.Plan {
	var plans []*Plan
	for f, p := range ir.Present(programs) {
		plans = append(plans, m.states.Of(f).Update(&p.Node, changes.Of(f)...))
	}
	return Join(plans...)
}

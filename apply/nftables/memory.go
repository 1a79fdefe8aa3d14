package nftables

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Memory is what a daemon knows of the tables that it keeps: a State for each
// family (see apply/loop).
type Memory struct{ states []*State }

// Lower gives the tables that the programs want.
func (m *Memory) Lower(programs []*ir.Program) rules.Tables {
	return rules.Renderer.Lower(programs).(rules.Tables)
}

// Remember notes that the kernel holds the programs.
func (m *Memory) Remember(programs []*ir.Program) {
	m.states = make([]*State, len(programs))
	for i, p := range programs {
		m.states[i] = NewState(p.Family)
		for j := range p.Services {
			m.states[i].Update(&p.Node, ir.Change{Name: p.Services[j].Name, New: &p.Services[j]})
		}
	}
}

// Plan gives what leads from what is remembered to the programs, which differ
// from it by changes, and remembers them.
func (m *Memory) Plan(programs []*ir.Program, changes [2][]ir.Change) apply.Plan {
	var plans []*Plan
	for i, p := range programs {
		plans = append(plans, m.states[i].Update(&p.Node, changes[i]...))
	}
	return Join(plans...)
}

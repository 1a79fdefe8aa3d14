package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Memory is what a daemon knows of the tables that it keeps: an Assembly for
// each family that the kernel has (see apply/loop).
type Memory struct {
	target     *Target
	assemblies map[ir.Family]*rules.Assembly
}

// NewMemory gives the Memory of a daemon that writes to t.
func NewMemory(t *Target) *Memory { return &Memory{target: t} }

// Lower gives the tables that the programs want.
func (*Memory) Lower(programs []*ir.Program) rules.Rulesets {
	return rules.Renderer.Lower(programs).(rules.Rulesets)
}

// Remember notes that the kernel holds the programs.
func (m *Memory) Remember(programs []*ir.Program) {
	m.assemblies = map[ir.Family]*rules.Assembly{}
	for _, p := range programs {
		if slices.Contains(m.target.families, p.Family) {
			m.assemblies[p.Family] = rules.NewAssembly(p)
		}
	}
}

// Plan gives what leads from what is remembered to what differs from it by
// changes, and remembers that. Families without a change are left out.
func (m *Memory) Plan(programs []*ir.Program, changes [2][]ir.Change) apply.Plan {
	var have, want rules.Rulesets
	var sizes [][2]int
	for i, p := range programs {
		a := m.assemblies[p.Family]
		if a == nil || len(changes[i]) == 0 {
			continue
		}
		h, w := a.Change(changes[i])
		have, want = append(have, m.target.possible(h)), append(want, m.target.possible(w))
		sizes = append(sizes, a.Size())
	}
	return newPlan(have, want).sized(sizes)
}

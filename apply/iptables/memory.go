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
	assemblies ir.PerFamily[*rules.Assembly]
}

// NewMemory gives the Memory of a daemon that writes to t.
func NewMemory(t *Target) *Memory { return &Memory{target: t} }

// Lower gives the tables that the programs want.
func (*Memory) Lower(programs ir.Programs) rules.Rulesets {
	return rules.LowerAll(programs)
}

// Remember notes that the kernel holds the programs.
func (m *Memory) Remember(programs ir.Programs) {
	m.assemblies = ir.PerFamily[*rules.Assembly]{}
	for f, p := range ir.Present(programs) {
		if slices.Contains(m.target.families, f) {
			*m.assemblies.At(f) = rules.NewAssembly(p)
		}
	}
}

// Plan gives what leads from what is remembered to what differs from it by
// changes, and remembers that. Families without a change are left out.
func (m *Memory) Plan(_ ir.Programs, changes ir.Changes) apply.Plan {
	var have, want rules.Rulesets
	var sizes ir.PerFamily[[2]int]
	for f, a := range ir.Present(m.assemblies) {
		if len(changes.Of(f)) == 0 {
			continue
		}
		h, w := a.Change(changes.Of(f))
		*have.At(f), *want.At(f) = m.target.possible(h), m.target.possible(w)
		*sizes.At(f) = a.Size()
	}
	return newPlan(have, want).sized(sizes)
}

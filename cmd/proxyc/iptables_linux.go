package main

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/ir"
	iptablesrules "github.com/proxyc/proxyc/render/iptables"
)

// iptablesMemory remembers what Services were lowered to, and the tables that
// they make together: these have dispatch trees, which all Services share.
type iptablesMemory struct {
	target    *iptables.Target
	fragments [loop.Families]loop.Fragments[*iptablesrules.Fragment]
	have      iptablesrules.Rulesets
}

func newIPTablesMemory(t *iptables.Target) *iptablesMemory {
	m := &iptablesMemory{target: t}
	for i := range m.fragments {
		m.fragments[i].Lower = func(node *ir.Node, f ir.Family, s *ir.Service) *iptablesrules.Fragment {
			return iptablesrules.LowerService(f, node, s)
		}
	}
	return m
}

func (*iptablesMemory) Lower(programs []*ir.Program) iptablesrules.Rulesets {
	return iptablesrules.Renderer.Lower(programs).(iptablesrules.Rulesets)
}

func (m *iptablesMemory) Remember(programs []*ir.Program) {
	for i, p := range programs {
		m.fragments[i].Reset(p)
	}
	m.have = m.assemble(programs)
}

func (m *iptablesMemory) Plan(programs []*ir.Program, changes [loop.Families][]ir.Change) apply.Plan {
	for i, p := range programs {
		m.fragments[i].Change(p, changes[i])
	}
	have := m.have
	m.have = m.assemble(programs)
	return m.target.Plan(have, m.have)
}

func (m *iptablesMemory) assemble(programs []*ir.Program) iptablesrules.Rulesets {
	sets := make(iptablesrules.Rulesets, len(programs))
	for i, p := range programs {
		sets[i] = iptablesrules.Assemble(p.Family, &p.Node, m.fragments[i].All())
	}
	return sets
}

package xtables

import (
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Packet is the first packet of a connection on its way through the hooks.
type Packet struct {
	sim.Packet // as it is now: DNAT and Redirect change the destination

	Redirected bool // to an address of this node, whatever Dst says

	Mark       uint32
	Masquerade bool     // the source address is to be changed
	Balanced   ir.Match // the virtual server of ipvs that took it; zero if none

	Local func(netip.Addr) bool                           // tells the node's addresses
	InSet func(p *Packet, set string, fields string) bool // looks into ipsets; nil: there are none
}

// Walk takes the packet through one chain and gives the action that ended
// the walk: Return when no rule did.
func (p *Packet) Walk(tables []Table, table, chain string) Action {
	for i := range tables {
		if tables[i].Name == table {
			return p.walk(&tables[i], chain)
		}
	}
	return Return
}

func (p *Packet) walk(t *Table, chain string) Action {
	for i := range t.Chains {
		c := &t.Chains[i]
		if c.Name != chain {
			continue
		}
		for j := range c.Rules {
			if r := &c.Rules[j]; r.holds(p) {
				if end, ended := p.obey(t, &r.Target); ended {
					return end
				}
			}
		}
	}
	return Return
}

func (r *Rule) holds(p *Packet) bool {
	for _, m := range r.Matches {
		if !m.Holds(p) {
			return false
		}
	}
	return true
}

// obey does what a target says and tells whether that ends the chain it stands in.
func (p *Packet) obey(t *Table, target *Target) (end Action, ended bool) {
	switch target.Action {
	case Jump:
		end = p.walk(t, target.Chain)
		return end, end != Return
	case SetMark:
		p.Mark |= target.Mark
		return 0, false
	case ClearMark:
		p.Mark &^= target.Mark
		return 0, false
	case Masquerade:
		p.Masquerade = true
	case DNAT:
		p.Dst, p.Port = target.To.Addr(), target.To.Port()
	case Redirect:
		p.Redirected, p.Port = true, target.To.Port()
	}
	return target.Action, true
}

// Holds implements Match.
func (m Source) Holds(p *Packet) bool { return m.Prefix.Contains(p.Src) != m.Not }

// Holds implements Match.
func (m Destination) Holds(p *Packet) bool { return netip.Prefix(m).Contains(p.Dst) }

// Holds implements Match.
func (m Input) Holds(p *Packet) bool {
	name, isPrefix := strings.CutSuffix(m.Interface, "+")
	hit := p.In == name
	if isPrefix {
		hit = p.In != "" && strings.HasPrefix(p.In, name)
	}
	return hit != m.Not
}

// Holds implements Match.
func (m Protocol) Holds(p *Packet) bool { return p.Protocol == ir.Protocol(m) }

// Holds implements Match.
func (m Port) Holds(p *Packet) bool { return p.Protocol == m.Protocol && p.Port == m.Number }

// Holds implements Match.
func (m InSet) Holds(p *Packet) bool { return p.InSet != nil && p.InSet(p, m.Set, m.Fields) }

// Holds implements Match.
func (m AddrType) Holds(p *Packet) bool {
	addr := p.Dst
	if m.Source {
		addr = p.Src
	}
	return p.Local(addr) != m.Not
}

// Holds implements Match: a sim.Packet comes in by a routed interface.
func (NotBridged) Holds(*Packet) bool { return true }

// Holds implements Match.
func (m Marked) Holds(p *Packet) bool { return (p.Mark&m.Mark == m.Mark) != m.Not }

// Holds implements Match: a sim.Packet is the first of its connection.
func (m State) Holds(*Packet) bool { return m == "NEW" }

// Holds implements Match.
func (m Balanced) Holds(p *Packet) bool { return p.Balanced == ir.Match(m) }

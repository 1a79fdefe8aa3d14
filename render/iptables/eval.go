package iptables

import (
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Eval walks the first packet of a new connection through the rules, in the
// order in which the kernel calls the tables, and returns everything that can
// become of it. local says which addresses are the node's own, loopback
// included. Built-in chains hold nothing but our jumps, and accept.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	return outcome(r.Walker(local, nil).journey(Packet{Packet: pkt}))
}

// Packet is a packet on its way, and what happened to it so far.
type Packet struct {
	sim.Packet          // as it is now: DNAT and Redirect change the destination
	Mark       uint32   // of the packet
	Balanced   ir.Match // the virtual server of ipvs that took it; zero if none
	DNAT       bool     // its destination was translated
	SNAT       bool     // it is masqueraded
	Redirected bool     // to an address of this node, whatever Dst says
	Affinity   bool     // a list of clients was asked
	Fate       Target   // what the last built-in chain said: Accept, Drop, Reject, or Continue if nothing
}

// Walker leads packets through the chains of a Ruleset.
type Walker struct {
	local       func(netip.Addr) bool
	has         func(p *Packet, set InSet) bool
	filter, nat chains
}

// chains are the rules of a table's chains, the built-in ones included.
type chains map[string][]Rule

// Walker returns one for a node whose own addresses local knows, and whose
// ipsets has looks into; nil where there are none.
func (r *Ruleset) Walker(local func(netip.Addr) bool, has func(p *Packet, set InSet) bool) *Walker {
	return &Walker{local: local, has: has, filter: index(&r.Filter), nat: index(&r.Nat)}
}

// Filter returns what may have become of a packet behind a chain of the filter
// table: one packet, but for rules that leave something to chance.
func (e *Walker) Filter(chain string, p Packet) []Packet { return e.walk(e.filter, chain, p) }

// Nat is Filter for the nat table.
func (e *Walker) Nat(chain string, p Packet) []Packet { return e.walk(e.nat, chain, p) }

func index(t *Table) chains {
	chains := make(chains, len(t.Chains))
	for _, c := range t.Chains {
		chains[c.Name] = c.Rules
	}
	for _, h := range t.Jumps {
		chains[h.Chain] = append(chains[h.Chain], h.Rule)
	}
	return chains
}

// journey returns the packet as it may come out at the end, once for each way in
// which chance may fall.
func (e *Walker) journey(t Packet) []Packet {
	fromNode := t.FromNode()
	first := "PREROUTING"
	if fromNode {
		first = "OUTPUT"
	}
	var ends []Packet
	for _, t := range e.walk(e.nat, first, t) {
		var hooks []string
		if fromNode {
			hooks = append(hooks, "OUTPUT")
		}
		if e.local(t.Dst) {
			hooks = append(hooks, "INPUT")
		} else if !fromNode {
			hooks = append(hooks, "FORWARD")
		}
		ways := []Packet{t}
		for _, h := range hooks {
			ways = e.all(e.filter, h, ways)
		}
		if e.local(t.Dst) && !fromNode { // delivered, and sent by no interface
			ends = append(ends, ways...)
			continue
		}
		ends = append(ends, e.all(e.nat, "POSTROUTING", ways)...)
	}
	return ends
}

// all walks those that are still on their way through a built-in chain.
func (e *Walker) all(table chains, chain string, ways []Packet) []Packet {
	var ends []Packet
	for _, t := range ways {
		if t.Fate == Drop || t.Fate == Reject {
			ends = append(ends, t)
			continue
		}
		ends = append(ends, e.walk(table, chain, t)...)
	}
	return ends
}

// walk returns what may have become of t behind a chain.
func (e *Walker) walk(table chains, chain string, t Packet) []Packet {
	t.Fate = Continue
	var ends []Packet
	here := []Packet{t} // still in this chain
	rules := table[chain]
	for i := range rules {
		r := &rules[i]
		var next []Packet
		for _, t := range here {
			if !e.matches(r, &t) {
				next = append(next, t)
				continue
			}
			if r.OneIn > 1 || r.Recent.Op == RecentCheck {
				passed := t // chance, or a list that does not hold the client
				passed.Affinity = t.Affinity || r.Recent.Op == RecentCheck
				next = append(next, passed)
			}
			for _, t := range e.act(table, r, t) {
				switch t.Fate {
				case Continue:
					next = append(next, t)
				case Return: // the chain before this one goes on behind its jump
					t.Fate = Continue
					ends = append(ends, t)
				default:
					ends = append(ends, t)
				}
			}
		}
		if here = next; len(here) == 0 {
			return ends
		}
	}
	return append(ends, here...)
}

// act applies a rule's target to a packet that matches.
func (e *Walker) act(table chains, r *Rule, t Packet) []Packet {
	if r.Recent.Op != RecentNone {
		t.Affinity = true
	}
	switch r.Target {
	case Jump:
		return e.walk(table, r.Chain, t)
	case SetMark:
		t.Mark = t.Mark&^r.XMark.Mask ^ r.XMark.Value
	case DNAT:
		t.Dst, t.Port, t.DNAT, t.Fate = r.To.Addr(), r.To.Port(), true, Accept
	case Redirect:
		t.Redirected, t.Port, t.DNAT, t.Fate = true, r.To.Port(), true, Accept
	case Masquerade:
		t.SNAT, t.Fate = true, Accept
	case Return, Accept, Drop, Reject:
		t.Fate = r.Target
	}
	return []Packet{t}
}

func (e *Walker) matches(r *Rule, t *Packet) bool {
	holds := func(set bool, m Match, match bool) bool { return !set || match != (r.Not&m != 0) }
	state := New
	if t.DNAT {
		state |= DNATed
	}
	return holds(r.Src.IsValid(), Src, r.Src.Contains(t.Src)) &&
		holds(r.Dst.IsValid(), Dst, r.Dst.Contains(t.Dst)) &&
		holds(r.In != "", In, matchInterface(r.In, t.In)) &&
		holds(r.States != 0, States, r.States&state != 0) &&
		holds(r.Mark.Mask != 0, MarkMatch, t.Mark&r.Mark.Mask == r.Mark.Value) &&
		(r.Protocol == 0 || r.Protocol == t.Protocol) &&
		(r.Ports == PortRange{} || r.Ports.First <= t.Port && t.Port <= r.Ports.Last) &&
		(!r.SrcLocal || e.local(t.Src) != (r.Not&SrcType != 0)) &&
		(!r.DstLocal || e.local(t.Dst)) &&
		(r.Rare == nil || r.Rare.holds(e, t)) &&
		r.Raw == "" // not Bridged always holds: a sim.Packet comes in by a routed interface
}

func (m InSet) holds(e *Walker, p *Packet) bool { return e.has != nil && e.has(p, m) }

func (m Balanced) holds(_ *Walker, p *Packet) bool { return p.Balanced == ir.Match(m) }

func matchInterface(pattern, name string) bool {
	if start, ok := strings.CutSuffix(pattern, "+"); ok {
		return strings.HasPrefix(name, start)
	}
	return pattern == name
}

// outcome says of all ends together what the packet met. Chance picks among
// destinations only, so that one refusal is the fate of all.
func outcome(ends []Packet) sim.Outcome {
	var to []sim.Destination
	affinity := false
	for _, t := range ends {
		switch {
		case t.Fate == Drop:
			return sim.Outcome{Fate: sim.Dropped}
		case t.Fate == Reject:
			return sim.Outcome{Fate: sim.Rejected}
		case t.DNAT:
			to = append(to, sim.Destination{AddrPort: netip.AddrPortFrom(t.Dst, t.Port), SNAT: t.SNAT})
			affinity = affinity || t.Affinity
		}
	}
	if len(to) == 0 {
		return sim.Outcome{}
	}
	return sim.NewOutcome(affinity, to)
}

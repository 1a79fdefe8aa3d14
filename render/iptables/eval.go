package iptables

import (
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Eval walks the first packet of a new connection through the rules, in the
// order in which the kernel calls the tables, and gives everything that can
// become of it. local says which addresses are the node's own, loopback
// included. Built-in chains hold nothing but our jumps, and accept.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	e := eval{local: local, filter: index(&r.Filter), nat: index(&r.Nat)}
	return e.outcome(e.journey(traveller{
		src: pkt.Src, dst: pkt.Dst, protocol: pkt.Protocol, port: pkt.Port, in: pkt.In,
	}))
}

// traveller is a packet on its way, and what happened to it so far.
type traveller struct {
	src, dst netip.Addr
	protocol ir.Protocol
	port     uint16
	in       string
	mark     uint32
	dnat     bool   // its destination was translated
	snat     bool   // it is masqueraded
	affinity bool   // a list of clients was asked
	fate     Target // what the last chain said: Accept, Drop, Reject, or Continue if nothing
}

type eval struct {
	local       func(netip.Addr) bool
	filter, nat map[string][]Rule
}

// index finds the rules of a table's chains, the built-in ones included.
func index(t *Table) map[string][]Rule {
	chains := make(map[string][]Rule, len(t.Chains))
	for _, c := range t.Chains {
		chains[c.Name] = c.Rules
	}
	for _, h := range t.Hooks {
		chains[h.Chain] = append(chains[h.Chain], h.Rule)
	}
	return chains
}

// journey gives the packet as it may come out at the end, once for each way in
// which chance may fall.
func (e *eval) journey(t traveller) []traveller {
	fromNode := t.in == ""
	first := "PREROUTING"
	if fromNode {
		first = "OUTPUT"
	}
	var ends []traveller
	for _, t := range e.walk(e.nat, first, t) {
		var hooks []string
		if fromNode {
			hooks = append(hooks, "OUTPUT")
		}
		if e.local(t.dst) {
			hooks = append(hooks, "INPUT")
		} else if !fromNode {
			hooks = append(hooks, "FORWARD")
		}
		ways := []traveller{t}
		for _, h := range hooks {
			ways = e.all(e.filter, h, ways)
		}
		if e.local(t.dst) && !fromNode { // delivered, and sent by no interface
			ends = append(ends, ways...)
			continue
		}
		ends = append(ends, e.all(e.nat, "POSTROUTING", ways)...)
	}
	return ends
}

// all walks those that are still on their way through a built-in chain.
func (e *eval) all(table map[string][]Rule, chain string, ways []traveller) []traveller {
	var ends []traveller
	for _, t := range ways {
		if t.fate == Drop || t.fate == Reject {
			ends = append(ends, t)
			continue
		}
		ends = append(ends, e.walk(table, chain, t)...)
	}
	return ends
}

// walk gives what may have become of t behind a chain.
func (e *eval) walk(table map[string][]Rule, chain string, t traveller) []traveller {
	t.fate = Continue
	var ends []traveller
	here := []traveller{t} // still in this chain
	rules := table[chain]
	for i := range rules {
		r := &rules[i]
		var next []traveller
		for _, t := range here {
			if !e.matches(r, &t) {
				next = append(next, t)
				continue
			}
			if r.OneIn > 1 || r.Recent.Op == RecentCheck {
				passed := t // chance, or a list that does not hold the client
				passed.affinity = t.affinity || r.Recent.Op == RecentCheck
				next = append(next, passed)
			}
			for _, t := range e.act(table, r, t) {
				switch t.fate {
				case Continue:
					next = append(next, t)
				case Return: // the chain before this one goes on behind its jump
					t.fate = Continue
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
func (e *eval) act(table map[string][]Rule, r *Rule, t traveller) []traveller {
	if r.Recent.Op != RecentNone {
		t.affinity = true
	}
	switch r.Target {
	case Jump:
		return e.walk(table, r.Chain, t)
	case SetMark:
		t.mark = t.mark&^r.XMark.Mask ^ r.XMark.Value
	case DNAT:
		t.dst, t.port, t.dnat, t.fate = r.To.Addr(), r.To.Port(), true, Accept
	case Masquerade:
		t.snat, t.fate = true, Accept
	case Return, Accept, Drop, Reject:
		t.fate = r.Target
	}
	return []traveller{t}
}

func (e *eval) matches(r *Rule, t *traveller) bool {
	holds := func(set bool, m Match, match bool) bool { return !set || match != (r.Not&m != 0) }
	state := New
	if t.dnat {
		state |= DNATed
	}
	return holds(r.Src.IsValid(), Src, r.Src.Contains(t.src)) &&
		holds(r.Dst.IsValid(), Dst, r.Dst.Contains(t.dst)) &&
		holds(r.In != "", In, matchInterface(r.In, t.in)) &&
		holds(r.States != 0, States, r.States&state != 0) &&
		holds(r.Mark.Mask != 0, MarkMatch, t.mark&r.Mark.Mask == r.Mark.Value) &&
		(r.Protocol == 0 || r.Protocol == t.protocol) &&
		(r.Ports == PortRange{} || r.Ports.First <= t.port && t.port <= r.Ports.Last) &&
		(!r.SrcLocal || e.local(t.src)) &&
		(!r.DstLocal || e.local(t.dst)) &&
		r.Raw == ""
}

func matchInterface(pattern, name string) bool {
	if start, ok := strings.CutSuffix(pattern, "+"); ok {
		return strings.HasPrefix(name, start)
	}
	return pattern == name
}

// outcome says of all ends together what the packet met. Chance picks among
// destinations only, so that one refusal is the fate of all.
func (e *eval) outcome(ends []traveller) sim.Outcome {
	var to []sim.Destination
	affinity := false
	for _, t := range ends {
		switch {
		case t.fate == Drop:
			return sim.Outcome{Fate: sim.Dropped}
		case t.fate == Reject:
			return sim.Outcome{Fate: sim.Rejected}
		case t.dnat:
			to = append(to, sim.Destination{AddrPort: netip.AddrPortFrom(t.dst, t.port), SNAT: t.snat})
			affinity = affinity || t.affinity
		}
	}
	if len(to) == 0 {
		return sim.Outcome{}
	}
	return sim.NewOutcome(affinity, to)
}

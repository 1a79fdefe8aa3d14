package iptables

import (
	"maps"
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
	return NewEvaluator(r, sim.OwnOf(local)).Outcome(pkt, nil)
}

// Evaluator answers for many packets what the rules do to them. The rules do not
// change. It may be asked by several goroutines.
type Evaluator struct{ walker *Walker }

// NewEvaluator indexes the rules, which costs what they are.
func NewEvaluator(r *Ruleset, own *sim.Own) *Evaluator {
	w := r.Walker(own, nil)
	w.only = onlyFor(w.nat)
	return &Evaluator{w}
}

// Outcome is Eval; it tells cuts what the packet was compared with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	return outcome(e.walker.journey(Packet{Packet: pkt, Chance: 1, Cuts: cuts}))
}

// Destinations calls yield for the prefixes that destinations of packets are
// compared with, some of them several times.
func (e *Evaluator) Destinations(yield func(netip.Prefix) bool) {
	for _, p := range e.walker.own.Prefixes() {
		if !yield(p) {
			return
		}
	}
	for _, table := range [...]chains{e.walker.filter, e.walker.nat} {
		for _, rules := range table {
			for i := range rules {
				if rules[i].Dst.IsValid() && !yield(rules[i].Dst) {
					return
				}
			}
		}
	}
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

	Chance float64   // of having come this way, of 1
	Cuts   *sim.Cuts // what it is compared with is told to; nil: nobody
}

// Walker leads packets through the chains of a Ruleset.
type Walker struct {
	own         *sim.Own
	has         func(p *Packet, set InSet) bool
	filter, nat chains
	only        map[string]map[netip.Addr]bool // see reaches; made for an Evaluator
}

// chains are the rules of a table's chains, the built-in ones included.
type chains map[string][]Rule

// Walker returns one for a node with its own addresses, and whose ipsets has
// looks into; nil where there are none.
func (r *Ruleset) Walker(own *sim.Own, has func(p *Packet, set InSet) bool) *Walker {
	return &Walker{own: own, has: has, filter: index(&r.Filter), nat: index(&r.Nat)}
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
		if e.own.Has(t.Dst) {
			hooks = append(hooks, "INPUT")
		} else if !fromNode {
			hooks = append(hooks, "FORWARD")
		}
		ways := []Packet{t}
		for _, h := range hooks {
			ways = e.all(e.filter, h, ways)
		}
		if e.own.Has(t.Dst) && !fromNode { // delivered, and sent by no interface
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
		missed := here[:0] // those whom the rule does not concern, in the same place
		var back []Packet  // those who come back from it
		for _, t := range here {
			if !e.matches(r, &t) {
				missed = append(missed, t)
				continue
			}
			if r.OneIn > 1 || r.Recent.Op == RecentCheck {
				// Chance, or a list that does not hold the client, as for the first packet.
				passed := t
				passed.Affinity = t.Affinity || r.Recent.Op == RecentCheck
				if r.OneIn > 1 {
					t.Chance /= float64(r.OneIn)
				} else {
					t.Chance = 0
				}
				passed.Chance -= t.Chance
				back = append(back, passed)
			}
			t.Affinity = t.Affinity || r.Recent.Op != RecentNone
			if r.Target != Jump {
				back, ends = part(decide(r, t), back, ends)
				continue
			}
			for _, t := range e.walk(table, r.Chain, t) {
				back, ends = part(t, back, ends)
			}
		}
		if here = append(missed, back...); len(here) == 0 {
			return ends
		}
	}
	return append(ends, here...)
}

// part adds a packet to those who go on with the next rule, or to those who are
// done with the chain.
func part(t Packet, back, ends []Packet) (_, _ []Packet) {
	switch t.Fate {
	case Continue:
		return append(back, t), ends
	case Return: // the chain before this one goes on behind its jump
		t.Fate = Continue
	}
	return back, append(ends, t)
}

// decide applies the target of a rule, which is no jump, to a packet that matches.
func decide(r *Rule, t Packet) Packet {
	switch r.Target {
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
	return t
}

// onlyFor returns for each chain the destinations without which it does nothing;
// none for chains that may do something to any.
func onlyFor(table chains) map[string]map[netip.Addr]bool {
	only := make(map[string]map[netip.Addr]bool, len(table))
	var of func(chain string) map[netip.Addr]bool
	of = func(chain string) map[netip.Addr]bool {
		if known, ok := only[chain]; ok {
			return known
		}
		only[chain] = nil // until it is known, and if it leads to itself
		addrs := map[netip.Addr]bool{}
		for i := range table[chain] {
			switch r := &table[chain][i]; {
			case r.Raw == "" && r.Dst.IsSingleIP() && r.Not&Dst == 0:
				addrs[r.Dst.Addr()] = true
			case r.Raw == "" && r.Target == Jump:
				below := of(r.Chain)
				if below == nil {
					return nil
				}
				maps.Copy(addrs, below)
			default:
				return nil
			}
		}
		only[chain] = addrs
		return addrs
	}
	for chain := range table {
		of(chain)
	}
	return only
}

// reaches reports whether a jump can do anything to a packet whose destination
// is decided. Where it cannot, the source does not matter for it: the tree of
// hairpin rules goes by sources, and each of its rules is for one destination.
func (e *Walker) reaches(r *Rule, t *Packet) bool {
	if r.Target != Jump || !t.DNAT {
		return true
	}
	only := e.only[r.Chain]
	return only == nil || only[t.Dst]
}

// matches reports whether all matches of a rule hold. The destination is looked
// at first: it tells most packets apart. It and the port are the packet's own
// only until they are translated.
func (e *Walker) matches(r *Rule, t *Packet) bool {
	if r.Raw != "" {
		t.Cuts.Doubt(r.Raw)
		return false
	}
	holds := func(m Match, match bool) bool { return match != (r.Not&m != 0) }
	if r.Dst.IsValid() && !holds(Dst, r.Dst.Contains(t.Dst)) ||
		r.Protocol != 0 && r.Protocol != t.Protocol ||
		!e.reaches(r, t) ||
		r.Mark.Mask != 0 && !holds(MarkMatch, t.Mark&r.Mark.Mask == r.Mark.Value) {
		return false
	}
	if r.States != 0 {
		state := New
		if t.DNAT {
			state |= DNATed
		}
		if !holds(States, r.States&state != 0) {
			return false
		}
	}
	if r.DstLocal && !e.own.Has(t.Dst) {
		return false
	}
	if r.Ports != (PortRange{}) {
		if !t.DNAT {
			t.Cuts.Range(r.Ports.First, r.Ports.Last)
		}
		if t.Port < r.Ports.First || r.Ports.Last < t.Port {
			return false
		}
	}
	if r.In != "" {
		with := inputInterface(r.In)
		t.Cuts.Interface(with)
		if !holds(In, with.Holds(t.In)) {
			return false
		}
	}
	if r.Src.IsValid() {
		t.Cuts.Source(r.Src)
		if !holds(Src, r.Src.Contains(t.Src)) {
			return false
		}
	}
	if r.SrcLocal && !holds(SrcType, e.own.HasSource(t.Src, t.Cuts)) {
		return false
	}
	return r.Rare == nil || r.Rare.holds(e, t) // not Bridged always holds: a sim.Packet comes in by a routed interface
}

func (m InSet) holds(e *Walker, p *Packet) bool { return e.has != nil && e.has(p, m) }

func (m Balanced) holds(_ *Walker, p *Packet) bool { return p.Balanced == ir.Match(m) }

func (Counted) holds(*Walker, *Packet) bool { return true }

// inputInterface reads an interface as a rule names it.
func inputInterface(pattern string) sim.Interface {
	name, prefix := strings.CutSuffix(pattern, "+")
	return sim.Interface{Name: name, Prefix: prefix}
}

// outcome says of all ends together what the packet met. Chance picks among
// destinations only, so that one refusal is the fate of all.
func outcome(ends []Packet) sim.Outcome {
	var to []sim.Chance
	affinity := false
	for _, t := range ends {
		switch {
		case t.Fate == Drop:
			return sim.Outcome{Fate: sim.Dropped}
		case t.Fate == Reject:
			return sim.Outcome{Fate: sim.Rejected}
		case t.DNAT:
			to = append(to, sim.Chance{Weight: t.Chance,
				Destination: sim.Destination{AddrPort: netip.AddrPortFrom(t.Dst, t.Port), SNAT: t.SNAT}})
			affinity = affinity || t.Affinity
		}
	}
	if len(to) == 0 {
		return sim.Outcome{}
	}
	return sim.Shared(affinity, to)
}

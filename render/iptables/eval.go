package iptables

import (
	"net/netip"
	"slices"
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
	return &Evaluator{r.Walker(own, nil)}
}

// Outcome is Eval; it tells cuts what the packet was compared with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	return outcome(e.walker.journey(Packet{Packet: pkt, Chance: 1, Cuts: cuts}))
}

// Destinations calls yield for the prefixes that destinations of packets are
// compared with, some of them several times.
func (e *Evaluator) Destinations(yield func(netip.Prefix) bool) { e.walker.Destinations(yield) }

// Destinations is that of an Evaluator with the same rules.
func (e *Walker) Destinations(yield func(netip.Prefix) bool) {
	for _, p := range e.own.Prefixes() {
		if !yield(p) {
			return
		}
	}
	for _, table := range [...]map[string]*chain{e.filter, e.nat} {
		met := map[*chain]bool{}
		for _, hook := range builtInChains {
			if !table[hook].destinations(met, yield) {
				return
			}
		}
	}
}

// destinations is Destinations for one chain and those below it, but for what is
// met with a translated destination alone.
func (c *chain) destinations(met map[*chain]bool, yield func(netip.Prefix) bool) bool {
	if c == nil || met[c] {
		return true
	}
	met[c] = true
	for i := range c.rules {
		r := &c.rules[i]
		if r.States == DNATed && r.Not&States == 0 {
			continue
		}
		if r.Dst.IsValid() && !yield(r.Dst) || !r.to.destinations(met, yield) {
			return false
		}
	}
	return true
}

// Packet is a packet on its way, and what happened to it so far.
type Packet struct {
	sim.Packet          // as it is now: DNAT and Redirect change the destination
	Mark       uint32   // of the packet
	Balanced   ir.Match // the virtual server of ipvs that took it; zero if none
	DNAT       bool     // its destination was translated by a rule
	Translated bool     // its destination was translated by another than a rule
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
	filter, nat map[string]*chain // by name, the built-in ones included
}

// Walker returns one for a node with its own addresses, and whose ipsets has
// looks into; nil where there are none. It costs what the rules are.
func (r *Ruleset) Walker(own *sim.Own, has func(p *Packet, set InSet) bool) *Walker {
	return &Walker{own: own, has: has, filter: index(&r.Filter), nat: index(&r.Nat)}
}

// Filter returns what may have become of a packet behind a built-in chain of the
// filter table: one packet, but for rules that leave something to chance.
func (e *Walker) Filter(chain string, p Packet) []Packet { return e.builtIn(e.filter, chain, p, nil) }

// Nat is Filter for the nat table.
func (e *Walker) Nat(chain string, p Packet) []Packet { return e.builtIn(e.nat, chain, p, nil) }

// journey returns the packet as it may come out at the end, once for each way in
// which chance may fall.
func (e *Walker) journey(t Packet) []Packet {
	fromNode := t.FromNode()
	first := "PREROUTING"
	if fromNode {
		first = "OUTPUT"
	}
	ways := e.Nat(first, t)
	ends := make([]Packet, 0, len(ways))
	for _, t := range ways {
		var hooks []string
		if fromNode {
			hooks = append(hooks, "OUTPUT")
		}
		if e.own.Has(t.Dst) {
			hooks = append(hooks, "INPUT")
		} else if !fromNode {
			hooks = append(hooks, "FORWARD")
		}
		begun := len(ends)
		ends = append(ends, t)
		for _, h := range hooks {
			ends = e.all(e.filter, h, ends, begun)
		}
		if !e.own.Has(t.Dst) || fromNode { // else delivered, and sent by no interface
			ends = e.all(e.nat, "POSTROUTING", ends, begun)
		}
	}
	return ends
}

// all leads those from one on that are still on their way through a built-in chain.
func (e *Walker) all(table map[string]*chain, name string, ways []Packet, from int) []Packet {
	n := len(ways)
	for i := from; i < n; i++ {
		t := ways[i]
		if t.Fate == Drop || t.Fate == Reject {
			continue
		}
		// The first that comes out takes its place, the others stand behind.
		ways = e.builtIn(table, name, t, ways)
		last := len(ways) - 1
		ways[i] = ways[last]
		ways = ways[:last]
	}
	return ways
}

// builtIn appends to ends what may have become of t behind a built-in chain:
// at least one packet.
func (e *Walker) builtIn(table map[string]*chain, name string, t Packet, ends []Packet) []Packet {
	t.Fate = Continue
	return e.walk(table[name], 0, t, ends)
}

// walk appends to ends what may have become of t behind the rules of a chain
// from one on. Who comes out with Continue goes on behind the jump to the chain.
func (e *Walker) walk(c *chain, from int, t Packet, ends []Packet) []Packet {
	at := e.begin(c, &t, from)
	for i := at.next(); i >= 0; i = at.next() {
		r := &c.rules[i]
		if !e.matches(r.Rule, &t) {
			continue
		}
		taken := t
		taken.Affinity = t.Affinity || r.Recent.Op != RecentNone
		splits := r.OneIn > 1 || r.Recent.Op == RecentCheck
		if splits {
			// Chance, or a list that does not hold the client, as for the first packet.
			t.Affinity = t.Affinity || r.Recent.Op == RecentCheck
			if r.OneIn > 1 {
				taken.Chance /= float64(r.OneIn)
			} else {
				taken.Chance = 0
			}
			t.Chance -= taken.Chance
		}
		begun := len(ends)
		switch r.Target {
		case Return:
			ends = append(ends, taken)
		case Jump:
			ends = e.walk(r.to, 0, taken, ends)
			if back := comeBack(ends[begun:]); back > 0 {
				if back == 1 && !splits {
					t = ends[begun]
					ends = slices.Delete(ends, begun, begun+1)
					continue
				}
				goOn := slices.Clone(ends[begun : begun+back])
				ends = slices.Delete(ends, begun, begun+back)
				for _, t := range goOn {
					ends = e.walk(c, i+1, t, ends)
				}
			}
		default:
			taken = decide(r.Rule, taken)
			switch {
			case taken.Fate != Continue:
				ends = append(ends, taken)
			case splits:
				ends = e.walk(c, i+1, taken, ends)
			default:
				t = taken
				continue
			}
		}
		if !splits {
			return ends
		}
	}
	return append(ends, t)
}

// comeBack puts those first who come back from a chain, and returns how many
// they are.
func comeBack(ends []Packet) (back int) {
	for i := range ends {
		if ends[i].Fate == Continue {
			ends[back], ends[i] = ends[i], ends[back]
			back++
		}
	}
	return back
}

// decide applies the target of a rule, neither a jump nor Return, to a packet that
// matches.
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
	case Accept, Drop, Reject:
		t.Fate = r.Target
	}
	return t
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
		if !t.DNAT && !t.Translated {
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

func (m InSet) holds(e *Walker, p *Packet) bool {
	if e.has == nil {
		p.Cuts.Doubt("ipset " + m.Set)
		return false
	}
	return e.has(p, m)
}

func (m Balanced) holds(_ *Walker, p *Packet) bool { return p.Balanced == ir.Match(m) }

func (Counted) holds(*Walker, *Packet) bool { return true }

// inputInterface reads an interface as a rule names it.
func inputInterface(pattern string) sim.Interface {
	name, prefix := strings.CutSuffix(pattern, "+")
	return sim.Interface{Name: name, Prefix: prefix}
}

// outcome says of all ends together what the packet met.
func outcome(ends []Packet) sim.Outcome {
	chances := make([]sim.Chance, len(ends))
	affinity := false
	for i, t := range ends {
		c := sim.Chance{Weight: t.Chance}
		switch {
		case t.Fate == Drop:
			c.Fate = sim.Dropped
		case t.Fate == Reject:
			c.Fate = sim.Rejected
		case t.DNAT || t.SNAT:
			c.Fate = sim.Accepted
			c.Destination = sim.Destination{AddrPort: netip.AddrPortFrom(t.Dst, t.Port), SNAT: t.SNAT}
			affinity = affinity || t.Affinity
		}
		chances[i] = c
	}
	o := sim.Shared(chances)
	o.Affinity = affinity
	return o
}

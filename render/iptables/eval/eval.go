package eval

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// Evaluator answers for many packets what the rules do to them. The rules do not
// change. It may be asked by several goroutines. What it cannot follow as the kernel
// would is a doubt, never a match or none.
type Evaluator struct {
	walker *Walker
	doubts []string
}

// NewEvaluator indexes the rules, which costs what they are.
func NewEvaluator(r *iptables.Ruleset, own *sim.Own) *Evaluator {
	return &Evaluator{walker: NewWalker(r, own, nil), doubts: Doubts(r)}
}

// Doubts returns what cannot be said of single packets: chains of others that lead to ours.
func Doubts(r *iptables.Ruleset) (doubts []string) {
	for _, t := range r.Tables() {
		for _, chain := range t.Pinned {
			doubts = append(doubts, fmt.Sprintf("table %s: a chain of others leads to %s", t.Name, chain))
		}
	}
	return doubts
}

// Doubts returns what cannot be said of single packets.
func (e *Evaluator) Doubts() []string { return e.doubts }

// Outcome is Eval; it tells cuts what the packet was compared with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	ways := func(known []sim.Remembered) []sim.Way {
		ends := e.walker.journey(Packet{Packet: pkt, Chance: 1, Cuts: cuts, trip: &trip{known: known}})
		ways := make([]sim.Way, len(ends))
		for i := range ends {
			ways[i] = ends[i].way()
			if ends[i].Redirected {
				cuts.Doubt("table nat: a packet is redirected to an address that depends on the interface")
			}
		}
		return ways
	}
	return sim.WithAffinity(ways(nil), ways, func(what string) { cuts.Doubt("table nat: " + what) })
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
		for _, hook := range iptables.BuiltInChains() {
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
		if r.States == iptables.DNATed && r.Not&iptables.States == 0 {
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
	sim.Packet                 // as it is now: DNAT and Redirect change the destination
	Mark       uint32          // of the packet
	Balanced   ir.Match        // the virtual server of ipvs that took it; zero if none
	DNAT       bool            // its destination was translated by a rule
	Translated bool            // its destination was translated by another than a rule
	SNAT       bool            // it is masqueraded
	Redirected bool            // to an address of this node, whatever Dst says
	Fate       iptables.Target // what the last built-in chain said: Accept, Drop, Reject, or Continue if nothing

	Chance float64   // of having come this way, of 1
	Cuts   *sim.Cuts // what it is compared with is told to; nil: nobody

	marker *chain // whose rule set the proxy's bits of the mark; nil: none of those that are followed
	lists  *lists // of this way; nil: none was met
	trip   *trip  // of all ways of the packet
}

// lists are what a packet made of the lists of recent that it met. They do not change.
type lists struct {
	memory      []sim.Remembered // what they came to know of the client
	asked, knew []sim.Memory     // those that did not know it, and that did
}

// trip is what all ways of a packet have in common, and how far they came together.
type trip struct {
	known              []sim.Remembered  // what lists know of the client
	hook               string            // the built-in chain
	tell               func(*chain, int) // what the packet met; nil: nobody asks
	rules, ways, depth int
}

// way is what became of a packet, at the end of it.
func (t *Packet) way() sim.Way {
	w := sim.Way{Chance: sim.Chance{Weight: t.Chance}}
	if t.lists != nil {
		w.Memory, w.Asked, w.Knew = t.lists.memory, t.lists.asked, t.lists.knew
	}
	switch {
	case t.Fate == iptables.Drop:
		w.Fate = sim.Dropped
	case t.Fate == iptables.Reject:
		w.Fate = sim.Rejected
	case t.DNAT || t.SNAT:
		w.Fate = sim.Accepted
		w.Destination = sim.Destination{AddrPort: netip.AddrPortFrom(t.Dst, t.Port), SNAT: t.SNAT}
	}
	return w
}

// Walker leads packets through the chains of a Ruleset.
type Walker struct {
	own         *sim.Own
	has         func(p *Packet, set iptables.InSet) bool
	filter, nat map[string]*chain // by name, the built-in ones included

	mostRules, mostWays int // of one packet: more than rules of their number have without going in circles
}

// mostDepth is how deep chains may call each other. In nf_tables they may 16.
const mostDepth = 64

// NewWalker returns a Walker for a node with its own addresses. has looks into the node's ipsets; nil: it has none.
// The cost is that of the number of rules.
func NewWalker(r *iptables.Ruleset, own *sim.Own, has func(p *Packet, set iptables.InSet) bool) *Walker {
	n := 0
	for _, size := range r.Size() {
		n += size
	}
	return &Walker{own: own, has: has, filter: index(&r.Filter), nat: index(&r.Nat), mostRules: 1<<12 + 8*n, mostWays: 1<<12 + n}
}

// Filter returns what may have become of a packet behind a built-in chain of the
// filter table: one packet, but for rules that leave something to chance.
func (e *Walker) Filter(chain string, p Packet) []Packet { return e.builtIn(e.filter, chain, p, nil) }

// Nat is Filter for the nat table. Where the destination is translated, the kernel does not
// ask for it again.
func (e *Walker) Nat(chain string, p Packet) []Packet {
	if p.DNAT && (chain == "PREROUTING" || chain == "OUTPUT") {
		p.Fate = iptables.Continue
		return []Packet{p}
	}
	return e.builtIn(e.nat, chain, p, nil)
}

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
			if h == "INPUT" && fromNode { // over the loopback interface
				for i := range ends[begun:] {
					ends[begun+i].In = "lo"
				}
			}
			ends = e.all(e.filter, h, ends, begun)
		}
		if e.own.Has(t.Dst) && !fromNode { // delivered, and sent by no interface
			ends = e.all(e.nat, "INPUT", ends, begun)
			continue
		}
		ends = e.all(e.nat, "POSTROUTING", ends, begun)
		for i := range ends[begun:] {
			ends[begun+i].Leaves(e.own)
		}
	}
	return ends
}

// Leaves doubts marks of the proxy's that a packet has when it leaves.
func (t *Packet) Leaves(own *sim.Own) {
	if t.Mark&own.Mark != 0 && t.Fate != iptables.Drop && t.Fate != iptables.Reject {
		where := "table nat, chain POSTROUTING"
		if t.marker != nil {
			where = fmt.Sprintf("table %s, chain %s", t.marker.table, t.marker.name)
		}
		t.Cuts.Doubt(fmt.Sprintf("%s: a packet leaves with the mark 0x%x, which others may see", where, t.Mark&own.Mark))
	}
}

// all leads those from one on that are still on their way through a built-in chain.
func (e *Walker) all(table map[string]*chain, name string, ways []Packet, from int) []Packet {
	n := len(ways)
	for i := from; i < n; i++ {
		t := ways[i]
		if t.Fate == iptables.Drop || t.Fate == iptables.Reject {
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
	t.Fate = iptables.Continue
	if t.trip == nil {
		t.trip = &trip{}
	}
	t.trip.hook = name
	return e.walk(table[name], 0, t, ends)
}

// walk appends to ends what may have become of t behind the rules of a chain
// from one on. Who comes out with Continue goes on behind the jump to the chain.
func (e *Walker) walk(c *chain, from int, t Packet, ends []Packet) []Packet {
	if t.trip.depth++; t.trip.depth > mostDepth {
		t.Cuts.GiveUp(fmt.Sprintf("table %s, chain %s: chains call each other more than %d deep", c.table, c.name, mostDepth))
		t.trip.rules = e.mostRules
	}
	ends = e.rules(c, from, t, ends)
	t.trip.depth--
	return ends
}

func (e *Walker) rules(c *chain, from int, t Packet, ends []Packet) []Packet {
	at := e.begin(c, &t, from)
	for i := at.next(); i >= 0; i = at.next() {
		if t.trip.rules >= e.mostRules || t.trip.ways >= e.mostWays {
			t.Cuts.GiveUp(fmt.Sprintf("table %s: a packet meets more rules than %d, or goes more ways than %d", c.table, e.mostRules, e.mostWays))
			break
		}
		t.trip.rules++
		r := &c.rules[i]
		if !e.matches(c, r.Rule, &t) {
			continue
		}
		if r.Target == iptables.Jump && r.to.missing {
			c.doubt(r.Rule, &t, "chain "+r.Chain+" is not there")
		}
		if t.trip.tell != nil && (r.Target != iptables.Continue || r.Raw != "") {
			t.trip.tell(c, i)
		}
		taken := t
		splits := r.OneIn > 1
		if splits {
			t.trip.ways++
			taken.Chance /= float64(r.OneIn)
			t.Chance -= taken.Chance
		}
		begun := len(ends)
		switch r.Target {
		case iptables.Return:
			ends = append(ends, taken)
		case iptables.Jump:
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
			if r.Target == iptables.SetMark {
				e.ownMark(c, r.Rule, &t, r.XMark.Mask|r.XMark.Value)
			}
			before := taken.Mark
			if taken = decide(r.Rule, taken); taken.Mark&^before&e.own.Mark != 0 {
				taken.marker = c
			}
			switch {
			case taken.Fate != iptables.Continue:
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
		if ends[i].Fate == iptables.Continue {
			ends[back], ends[i] = ends[i], ends[back]
			back++
		}
	}
	return back
}

// decide applies the target of a rule, neither a jump nor Return, to a packet that
// matches.
func decide(r *iptables.Rule, t Packet) Packet {
	switch r.Target {
	case iptables.SetMark:
		t.Mark = t.Mark&^r.XMark.Mask ^ r.XMark.Value
	case iptables.DNAT:
		t.Dst, t.Port, t.DNAT, t.Fate = r.To.Addr(), r.To.Port(), true, iptables.Accept
	case iptables.Redirect:
		t.Redirected, t.Port, t.DNAT, t.Fate = true, r.To.Port(), true, iptables.Accept
	case iptables.Masquerade:
		t.SNAT, t.Fate = true, iptables.Accept
	case iptables.Accept, iptables.Drop, iptables.Reject:
		t.Fate = r.Target
	}
	return t
}

// matches reports whether all matches of a rule hold. The destination is looked
// at first: it tells most packets apart. It and the port are the packet's own
// only until they are translated.
func (e *Walker) matches(c *chain, r *iptables.Rule, t *Packet) bool {
	if r.Raw != "" {
		c.doubt(r, t, "")
		return false
	}
	holds := func(m iptables.Match, match bool) bool { return match != (r.Not&m != 0) }
	if r.Dst.IsValid() && !holds(iptables.Dst, r.Dst.Contains(t.Dst)) ||
		r.Protocol != 0 && r.Protocol != t.Protocol {
		return false
	}
	if r.Mark.Mask != 0 {
		e.ownMark(c, r, t, r.Mark.Mask)
		if !holds(iptables.MarkMatch, t.Mark&r.Mark.Mask == r.Mark.Value) {
			return false
		}
	}
	if r.States != 0 {
		state := iptables.New
		if t.DNAT {
			state |= iptables.DNATed
		}
		if !holds(iptables.States, r.States&state != 0) {
			return false
		}
	}
	if r.DstLocal && !e.own.Has(t.Dst) {
		return false
	}
	if r.Ports != (iptables.PortRange{}) {
		if !t.DNAT && !t.Translated {
			t.Cuts.Range(r.Ports.First, r.Ports.Last)
		}
		if t.Port < r.Ports.First || r.Ports.Last < t.Port {
			return false
		}
	}
	if r.In != "" {
		if t.trip.hook == "POSTROUTING" {
			c.doubt(r, t, "asks for the input interface of what leaves")
		}
		with := inputInterface(r.In)
		t.Cuts.Interface(with)
		if !holds(iptables.In, with.Holds(t.In)) {
			return false
		}
	}
	if r.Src.IsValid() {
		t.Cuts.Source(r.Src)
		if !holds(iptables.Src, r.Src.Contains(t.Src)) {
			return false
		}
	}
	if r.SrcLocal && !holds(iptables.SrcType, e.own.HasSource(t.Src, t.Cuts)) {
		return false
	}
	switch r.Rare.(type) {
	case iptables.InSet, iptables.Balanced:
		if e.has == nil {
			c.doubt(r, t, "what ipsets hold, and ipvs takes, is not known")
		}
	}
	if r.Rare != nil && !e.rare(c, r, t) { // not Bridged always holds: a sim.Packet comes in by a routed interface
		return false
	}
	return remembered(&r.Recent, t)
}

// remembered reports whether a list has the client, or enters the client there.
func remembered(r *iptables.Recent, t *Packet) bool {
	if r.Op == iptables.RecentNone {
		return true
	}
	var l lists
	if t.lists != nil {
		l = *t.lists
	}
	t.lists = &l
	if r.Op == iptables.RecentSet {
		l.memory = append(slices.Clip(l.memory), sim.Remembered{In: r.Name})
		return true
	}
	m := sim.Memory{Name: r.Name, Timeout: time.Duration(r.Seconds) * time.Second}
	if r.Seconds == 0 {
		m.Timeout = sim.Forever
	}
	if slices.Contains(t.trip.known, sim.Remembered{In: r.Name}) {
		l.knew = append(slices.Clip(l.knew), m)
		return true
	}
	l.asked = append(slices.Clip(l.asked), m)
	return false
}

// ownMark doubts bits of the mark that others may have set, or look at.
func (e *Walker) ownMark(c *chain, r *iptables.Rule, t *Packet, bits uint32) {
	if others := bits &^ e.own.Mark; others != 0 {
		c.doubt(r, t, fmt.Sprintf("bits of the mark that are not the proxy's: 0x%x", others))
	}
}

// doubt notes that what becomes of a packet is not known from a rule on.
func (c *chain) doubt(r *iptables.Rule, t *Packet, why string) {
	if t.Cuts == nil {
		return
	}
	text := r.Raw
	if text == "" {
		text = strings.TrimSpace(string(r.Append(nil, ir.FamilyOf(t.Src))))
	}
	if why != "" {
		text += ": " + why
	}
	t.Cuts.Doubt(fmt.Sprintf("table %s, chain %s: %s", c.table, c.name, text))
}

// rare reports whether the Rare match of a rule holds.
func (e *Walker) rare(c *chain, r *iptables.Rule, t *Packet) bool {
	switch m := r.Rare.(type) {
	case iptables.InSet:
		return e.has != nil && e.has(t, m)
	case iptables.Balanced:
		return t.Balanced == ir.Match(m)
	case iptables.Counted:
		return true
	}
	c.doubt(r, t, fmt.Sprintf("a match of type %T, which is not evaluated", r.Rare))
	return false
}

// inputInterface reads an interface as a rule names it.
func inputInterface(pattern string) sim.Interface {
	name, prefix := strings.CutSuffix(pattern, "+")
	return sim.Interface{Name: name, Prefix: prefix}
}

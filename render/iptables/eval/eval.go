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

// Evaluator computes the outcomes of packets under immutable rules. It is safe
// for concurrent use. It reports everything that it cannot evaluate like the
// kernel as a doubt, never as a match or mismatch.
type Evaluator struct {
	walker *Walker
	doubts []string
}

// NewEvaluator indexes the rules. The cost is linear in their number.
func NewEvaluator(r *iptables.Ruleset, own *sim.Own) *Evaluator {
	return &Evaluator{walker: NewWalker(r, own, nil), doubts: Doubts(r)}
}

// Doubts returns the doubts that do not depend on a single packet: foreign chains
// that jump to ours.
func Doubts(r *iptables.Ruleset) (doubts []string) {
	for _, t := range r.Tables() {
		for _, chain := range t.Pinned {
			doubts = append(doubts, fmt.Sprintf("table %s: a foreign chain leads to %s", t.Name, chain))
		}
	}
	return doubts
}

// Doubts returns the doubts that do not depend on a single packet.
func (e *Evaluator) Doubts() []string { return e.doubts }

// Outcome returns the outcome of a packet, and records in cuts the constants with
// which it compared the packet.
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

// Destinations calls add with the prefixes with which destinations are compared,
// possibly with duplicates.
func (e *Evaluator) Destinations(add func(netip.Prefix)) { e.walker.Destinations(add) }

// Destinations is that of an Evaluator with the same rules.
func (e *Walker) Destinations(add func(netip.Prefix)) {
	e.own.Prefixes(add)
	for _, table := range [...]map[string]*chain{e.filter, e.nat} {
		met := map[*chain]bool{}
		for _, hook := range iptables.BuiltInChains() {
			table[hook].destinations(met, add)
		}
	}
}

// destinations is Destinations for one chain and those below it, without rules
// that match only translated destinations.
func (c *chain) destinations(met map[*chain]bool, add func(netip.Prefix)) {
	if c == nil || met[c] {
		return
	}
	met[c] = true
	for i := range c.rules {
		r := &c.rules[i]
		if r.States == iptables.DNATed && r.Not&iptables.States == 0 {
			continue
		}
		if r.Dst.IsValid() {
			add(r.Dst)
		}
		r.to.destinations(met, add)
	}
}

// Packet is the state of a packet during evaluation.
type Packet struct {
	sim.Packet                 // the current packet: DNAT and Redirect change the destination
	Mark       uint32          // of the packet
	Balanced   ir.Match        // the virtual server of ipvs that accepted it; zero if none
	DNAT       bool            // its destination was translated by a rule
	Translated bool            // its destination was translated by something other than a rule
	SNAT       bool            // it is masqueraded
	Redirected bool            // to an address of this node, regardless of Dst
	Fate       iptables.Target // verdict of the last built-in chain: Accept, Drop, Reject, or Continue for none

	Chance float64   // probability of this path, from 0 to 1
	Cuts   *sim.Cuts // receives the comparisons; optional

	marker *chain // chain whose rule set the proxy's bits of the mark; nil if none that is evaluated
	lists  *lists // on this path; nil if none
	trip   *trip  // shared by all paths of the packet
}

// lists is the state of the lists of recent along a path. It is immutable.
type lists struct {
	memory      []sim.Remembered // entries for the client that were added
	missed, hit []sim.Memory     // lists without and with the client
}

// trip is the state that all paths of a packet share.
type trip struct {
	known              []sim.Remembered  // entries for the client at the start
	hook               string            // the built-in chain
	report             func(*chain, int) // called with each rule that affected the packet; optional
	rules, ways, depth int
}

// way returns the result of a path.
func (t *Packet) way() sim.Way {
	w := sim.Way{Chance: sim.Chance{Weight: t.Chance}}
	if t.lists != nil {
		w.Memory, w.Missed, w.Hit = t.lists.memory, t.lists.missed, t.lists.hit
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

// Walker evaluates packets against the chains of a Ruleset.
type Walker struct {
	own         *sim.Own
	has         func(p *Packet, set iptables.InSet) bool
	filter, nat map[string]*chain // by name, including the built-in ones

	maxRules, maxWays int // limits for one packet; rules without loops never exceed them
}

// maxDepth is the maximum nesting of chains. nf_tables allows 16.
const maxDepth = 64

// NewWalker returns a Walker for a node with its own addresses. has looks up the
// node's ipsets; nil if it has none. The cost is linear in the number of rules.
func NewWalker(r *iptables.Ruleset, own *sim.Own, has func(p *Packet, set iptables.InSet) bool) *Walker {
	n := 0
	for _, size := range r.Size() {
		n += size
	}
	return &Walker{own: own, has: has, filter: index(&r.Filter), nat: index(&r.Nat), maxRules: 1<<12 + 8*n, maxWays: 1<<12 + n}
}

// Filter returns the possible states of a packet after a built-in chain of the
// filter table: a single one, unless rules match at random.
func (e *Walker) Filter(chain string, p Packet) []Packet { return e.builtIn(e.filter, chain, p, nil) }

// Nat is Filter for the nat table. As in the kernel, a packet whose destination
// is translated is not translated again.
func (e *Walker) Nat(chain string, p Packet) []Packet {
	if p.DNAT && (chain == "PREROUTING" || chain == "OUTPUT") {
		p.Fate = iptables.Continue
		return []Packet{p}
	}
	return e.builtIn(e.nat, chain, p, nil)
}

// journey returns the final states of a packet, one for each random path.
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
		if e.own.Has(t.Dst) && !fromNode { // delivered locally, without an output interface
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

// Leaves reports a doubt if a packet leaves the node with the proxy's mark.
func (t *Packet) Leaves(own *sim.Own) {
	if t.Mark&own.Mark != 0 && t.Fate != iptables.Drop && t.Fate != iptables.Reject {
		where := "table nat, chain POSTROUTING"
		if t.marker != nil {
			where = fmt.Sprintf("table %s, chain %s", t.marker.table, t.marker.name)
		}
		t.Cuts.Doubt(fmt.Sprintf("%s: a packet leaves with the mark 0x%x, which others may see", where, t.Mark&own.Mark))
	}
}

// all evaluates a built-in chain for all packets from index from on that are
// still in transit.
func (e *Walker) all(table map[string]*chain, name string, ways []Packet, from int) []Packet {
	n := len(ways)
	for i := from; i < n; i++ {
		t := ways[i]
		if t.Fate == iptables.Drop || t.Fate == iptables.Reject {
			continue
		}
		// The first result replaces the packet, further ones are appended.
		ways = e.builtIn(table, name, t, ways)
		last := len(ways) - 1
		ways[i] = ways[last]
		ways = ways[:last]
	}
	return ways
}

// builtIn appends to ends the possible states of t after a built-in chain, at
// least one.
func (e *Walker) builtIn(table map[string]*chain, name string, t Packet, ends []Packet) []Packet {
	t.Fate = iptables.Continue
	if t.trip == nil {
		t.trip = &trip{}
	}
	t.trip.hook = name
	return e.walk(table[name], 0, t, ends)
}

// walk appends to ends the possible states of t after the rules of a chain from
// index from on. A packet with Continue returns to the rule after the jump to the
// chain.
func (e *Walker) walk(c *chain, from int, t Packet, ends []Packet) []Packet {
	if t.trip.depth++; t.trip.depth > maxDepth {
		t.Cuts.GiveUp(fmt.Sprintf("table %s, chain %s: chains call each other more than %d deep", c.table, c.name, maxDepth))
		t.trip.rules = e.maxRules
	}
	ends = e.rules(c, from, t, ends)
	t.trip.depth--
	return ends
}

func (e *Walker) rules(c *chain, from int, t Packet, ends []Packet) []Packet {
	at := e.begin(c, &t, from)
	for i := at.next(); i >= 0; i = at.next() {
		if t.trip.rules >= e.maxRules || t.trip.ways >= e.maxWays {
			t.Cuts.GiveUp(fmt.Sprintf("table %s: a packet meets more rules than %d, or goes more ways than %d", c.table, e.maxRules, e.maxWays))
			break
		}
		t.trip.rules++
		r := &c.rules[i]
		if !e.matches(c, r.Rule, &t) {
			continue
		}
		if r.Target == iptables.Jump && r.to.missing {
			c.doubt(r.Rule, &t, "chain "+r.Chain+" is missing")
		}
		if t.trip.report != nil && (r.Target != iptables.Continue || r.Raw != "") {
			t.trip.report(c, i)
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
			if back := moveReturned(ends[begun:]); back > 0 {
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

// moveReturned moves the packets that return from a chain to the front, and returns
// their number.
func moveReturned(ends []Packet) (back int) {
	for i := range ends {
		if ends[i].Fate == iptables.Continue {
			ends[back], ends[i] = ends[i], ends[back]
			back++
		}
	}
	return back
}

// decide applies the target of a matching rule, other than a jump or Return, to a
// packet.
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

// matches reports whether all matches of a rule hold. It compares the destination
// first, because it excludes most packets. Comparisons of destination and port
// are recorded only until these are translated.
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
		if !iptables.Shared(c.name) { // where the kubelet drops what only its KUBE-MARK-DROP marks
			e.ownMark(c, r, t, r.Mark.Mask)
		}
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
		if !holds(iptables.In, with.Matches(t.In)) {
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
	if r.Rare != nil && !e.rare(c, r, t) { // not Bridged always holds: a sim.Packet is received by a routed interface
		return false
	}
	return remembered(&r.Recent, t)
}

// remembered reports whether a list contains the client, or adds the client to
// it.
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
		l.hit = append(slices.Clip(l.hit), m)
		return true
	}
	l.missed = append(slices.Clip(l.missed), m)
	return false
}

// ownMark reports a doubt about mark bits that other programs may set or use.
func (e *Walker) ownMark(c *chain, r *iptables.Rule, t *Packet, bits uint32) {
	if others := bits &^ e.own.Mark; others != 0 {
		c.doubt(r, t, fmt.Sprintf("bits of the mark that are not the proxy's: 0x%x", others))
	}
}

// doubt records that the result for a packet is unknown because of a rule.
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

// inputInterface parses an interface in a rule.
func inputInterface(pattern string) sim.Interface {
	name, prefix := strings.CutSuffix(pattern, "+")
	return sim.Interface{Name: name, Prefix: prefix}
}

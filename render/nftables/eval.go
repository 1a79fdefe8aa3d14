package nftables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Eval walks a packet through the table as the kernel would, with every
// outcome of every random choice, on a node for which local reports which
// addresses are its own.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	return NewEvaluator(r, sim.OwnOf(local)).Outcome(pkt, nil)
}

// Evaluator answers for many packets what a table does to them. The table does
// not change. It may be asked by several goroutines.
//
// It knows hooks, statements and sets, and nothing of what the table is for. What it
// cannot follow as the kernel would is a doubt, never a match or none.
// Maps that rules fill are empty, as for a client's first connection; see memory.
type Evaluator struct {
	own     *sim.Own
	name    string                    // of the table, with its family
	family  ir.Family                 // of the table
	hooks   [Postrouting + 1][]*Chain // base chains by priority
	equals  []*Chain                  // base chains that have others at their priority
	beside  [Postrouting + 1]string   // base chains whose order is not known
	chains  map[string]*Chain
	sets    map[string]*indexed
	dormant bool            // no packet meets the table
	follows bool            // rules that do something are told
	machine Machine         // of a Follower
	missed  map[string]bool // elements that the packet was looked for as, and was not found
	// translated is what others made of the packet before; nil: nothing.
	translated *sim.Destination
	// handed are the proxy's bits of marks that packets have for rules that come behind;
	// nil: none do.
	handed map[uint32]bool
	flags  string

	tables               sync.Map // *slots by slotsKey: made when first asked for
	mostRules, mostPaths int      // of one packet: more than any table of its size has without going in circles
	seen                 memory
}

// NewEvaluator indexes a table, which costs what it holds.
func NewEvaluator(r *Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{own: own, name: r.Family.NFT() + " " + Table, family: r.Family,
		chains: make(map[string]*Chain, len(r.Chains)), sets: make(map[string]*indexed, len(r.Sets)),
		mostRules: 1 << 12, mostPaths: 1 << 12}
	for flag := range strings.FieldsFuncSeq(r.Flags, func(c rune) bool { return c == ',' || c == ' ' }) {
		switch flag {
		case "dormant":
			e.dormant = true
		case "owner", "persist":
		default:
			e.flags = flag
		}
	}
	for i := range r.Chains {
		c := &r.Chains[i]
		e.chains[c.Name] = c
		e.mostRules += 8 * len(c.Rules)
		if c.Base != nil {
			e.hooks[c.Base.Hook] = append(e.hooks[c.Base.Hook], c)
		}
	}
	for h, chains := range e.hooks {
		inOrder(chains, nil)
		for _, a := range chains {
			if i := slices.IndexFunc(chains, func(b *Chain) bool { return a != b && a.Base.equals(b.Base) }); i >= 0 {
				e.equals = append(e.equals, a)
				e.beside[h] = fmt.Sprintf("chains %s and %s: of one priority, so that their order is not known", chains[i].Name, a.Name)
			}
		}
	}
	for i := range r.Sets {
		e.sets[r.Sets[i].Name] = newIndexed(&r.Sets[i])
		e.mostPaths += len(r.Sets[i].Elements)
	}
	for i := range r.Chains {
		for _, rule := range r.Chains[i].Rules {
			for _, s := range rule.Stmts {
				if set, key := keyOf(s); set != "" && e.sets[set] != nil {
					e.sets[set].index(key)
				}
			}
		}
	}
	for _, l := range e.sets {
		for _, a := range l.Remembered {
			e.seen.write(sim.Remembered{In: l.Name, To: a})
		}
	}
	return e
}

// Priorities of the kernel's own, before, at or behind which base chains are.
const (
	priorityDefrag    = -400
	priorityConntrack = -200
)

// at is where the kernel calls a chain among those of its hook: those of type nat
// all where it translates, in order of their priority.
func (b *Base) at() int {
	switch {
	case !b.NAT:
		return b.Priority
	case b.Hook == Prerouting || b.Hook == Output:
		return PriorityDNAT
	}
	return PrioritySNAT
}

// equals reports whether the kernel calls two chains of a hook at one priority: the one that was
// registered last first (nf_hook_entries_grow), but of when that was it tells nothing.
func (b *Base) equals(o *Base) bool {
	return b.at() == o.at() && (b.NAT != o.NAT || b.Priority == o.Priority)
}

// inOrder sorts the base chains of a hook as the kernel calls them. Of equal ones the chain first
// comes first, with those of its type; nil: those of type nat, as they are listed.
func inOrder(chains []*Chain, first *Chain) {
	nat := first == nil || first.Base.NAT
	behind := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(chains, func(a, b *Chain) int {
		return cmp.Or(a.Base.at()-b.Base.at(), behind(a.Base.NAT != nat)-behind(b.Base.NAT != nat),
			a.Base.Priority-b.Base.Priority, behind(a != first)-behind(b != first))
	})
}

// keyOf returns the set that a statement looks into, and for what; none: "".
func keyOf(s Stmt) (set string, key []Term) {
	switch s := s.(type) {
	case MatchSet:
		return s.Set, s.Key
	case LookupVerdict:
		return s.Map, s.Key
	case LookupDNAT:
		return s.Map, s.Key
	}
	return "", nil
}

// Destinations calls yield for the prefixes that destinations of packets are
// compared with, some of them several times.
func (e *Evaluator) Destinations(yield func(netip.Prefix) bool) {
	for _, p := range e.own.Prefixes() {
		if !yield(p) {
			return
		}
	}
	for _, c := range e.chains {
		for _, rule := range c.Rules {
			for _, s := range rule.Stmts {
				if m, ok := s.(MatchNet); ok && isDestination(m.Field) && !yield(m.Prefix) {
					return
				}
				set, key := keyOf(s)
				l := e.sets[set]
				if l == nil || !l.fits(key) {
					continue
				}
				parts := l.partsOf(key, isDestination)
				if parts == 0 {
					continue
				}
				for i := range l.Elements {
					for _, p := range l.Elements[i].Key.prefixes(parts, l.Set) {
						if !yield(p) {
							return
						}
					}
				}
			}
		}
	}
}

// Outcome walks a packet through the table, and tells cuts what it was compared
// with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	if e.flags != "" {
		cuts.Doubt(fmt.Sprintf("table %s: flag %s", e.name, e.flags))
	}
	var reads []read
	var backends []netip.AddrPort
	ways := func(known []sim.Remembered) (all []sim.Way) {
		e.paths(pkt, cuts, known, func(w *walk) {
			all = append(all, w.way)
			reads = append(reads, w.reads...)
			if known == nil && w.dnat && len(w.reads) > 0 { // wherever it is refused then
				backends = append(backends, netip.AddrPortFrom(w.dst, w.port))
			}
		})
		return all
	}
	o := sim.WithAffinity(ways(nil), ways, func(what string) {
		cuts.Doubt("table " + e.name + ": " + what)
	})
	e.seen.asked(reads, backends)
	return o
}

// paths walks a packet that is known in some maps along every path that chance may
// take.
func (e *Evaluator) paths(pkt sim.Packet, cuts *sim.Cuts, known []sim.Remembered, visit func(*walk)) {
	var path []choicePoint
	for n := 0; ; n++ {
		if n == e.mostPaths {
			cuts.GiveUp(fmt.Sprintf("table %s: chance leads a packet more ways than %d", e.name, n))
			return
		}
		w := &walk{Evaluator: e, pkt: pkt, cuts: cuts, src: pkt.Src, dst: pkt.Dst, port: pkt.Port, path: path, known: known}
		if e.translated != nil {
			w.arrive(e.translated)
		}
		w.way.Chance = w.chance(w.fate())
		if w.rules > e.mostRules {
			cuts.GiveUp(fmt.Sprintf("table %s: a packet meets more rules than %d, some again and again", e.name, e.mostRules))
			return
		}
		visit(w)
		// The next path: the last choice that has another value takes it.
		path = w.path
		for len(path) > 0 && path[len(path)-1].taken+1 >= path[len(path)-1].of {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			return
		}
		path[len(path)-1].taken++
	}
}

// choicePoint is one random choice on a path. If share is not 0, the first of two values has it;
// otherwise all values have the same.
type choicePoint struct {
	taken, of uint32
	share     float64
}

// weight returns how often chance takes the value.
func (p choicePoint) weight() float64 {
	switch {
	case p.share == 0:
		return 1 / float64(p.of)
	case p.taken == 0:
		return p.share
	}
	return 1 - p.share
}

// walk is a packet on its way.
type walk struct {
	*Evaluator
	pkt  sim.Packet // as the connection began
	cuts *sim.Cuts

	src, dst netip.Addr // as they are now
	port     uint16
	in       string
	mark     uint32
	ctmark   uint32 // of its connection
	routed   uint32 // the mark by which it was routed
	marker   string // where it got the proxy's bits of its mark
	dnat     bool
	snat     bool

	base      *Base // the base chain where the packet is
	tracked   bool  // connection tracking has seen it
	untracked bool  // a rule exempted it from that
	chain     string
	rule      int    // in chain, from 1
	element   string // in which the rule found the packet

	path    []choicePoint // the choices to take, then those that were taken
	step    int           // how many are taken
	choices []string      // what the client's address and port choose on the way
	depth   int           // of calls
	rules   int           // how many it met

	known []sim.Remembered // what sets know of the client
	way   sim.Way
	met   []Met  // rules that did something
	reads []read // maps that were asked for an address
}

// doubt notes that what becomes of the packet is not known from here on.
func (w *walk) doubt(format string, args ...any) {
	if w.cuts == nil {
		return
	}
	w.cuts.Doubt(w.here() + ": " + fmt.Sprintf(format, args...))
}

// here names the rule where the packet is.
func (w *walk) here() string {
	where := w.where(w.chain)
	if w.rule > 0 {
		where += ", rule " + strconv.Itoa(w.rule)
	}
	return where
}

// setMark gives the packet a mark.
func (w *walk) setMark(mark uint32) {
	if w.cuts != nil && mark&^w.mark&w.own.Mark != 0 {
		w.marker = w.here()
	}
	w.mark = mark
}

// where names a chain and its table; "": the table alone.
func (e *Evaluator) where(chain string) string {
	switch {
	case strings.Contains(chain, ", chain "): // of a Ruleset that was qualified
		return "table " + chain
	case chain != "":
		return "table " + e.name + ", chain " + chain
	}
	return "table " + e.name
}

// chance is the way that the packet took, at the end of it.
func (w *walk) chance(fate sim.Fate) sim.Chance {
	c := sim.Chance{Fate: fate, Weight: 1}
	for _, p := range w.path {
		c.Weight *= p.weight()
	}
	c.Choice = strings.Join(w.choices, "+")
	if fate == sim.Accepted {
		c.Destination = sim.Destination{AddrPort: netip.AddrPortFrom(w.dst, w.port), SNAT: w.snat}
	}
	return c
}

// fate walks one path.
func (w *walk) fate() sim.Fate {
	switch w.journey() {
	case dropped:
		return sim.Dropped
	case rejected:
		return sim.Rejected
	}
	if !w.dnat && !w.snat {
		return sim.NotOurs
	}
	return sim.Accepted
}

// journey passes the packet through the kernel's hooks.
func (w *walk) journey() step {
	if w.pkt.FromNode() {
		if s := w.hook(Output, true); s != next {
			return s
		}
		if s := w.postrouting(); s != next || !w.own.Has(w.dst) {
			return s
		}
		// Over the loopback interface it comes back, its NAT decided.
		w.in = "lo"
		if s := w.hook(Prerouting, false); s != next {
			return s
		}
		return w.hook(Input, false)
	}
	w.in = w.pkt.In
	if s := w.hook(Prerouting, true); s != next {
		return s
	}
	if w.own.Has(w.dst) {
		return w.hook(Input, true)
	}
	if s := w.hook(Forward, true); s != next {
		return s
	}
	return w.postrouting()
}

// postrouting is the last hook of what leaves.
func (w *walk) postrouting() step {
	s := w.hook(Postrouting, true)
	if s == next && w.mark&w.own.Mark != 0 && w.handed == nil && w.cuts != nil {
		w.cuts.Doubt(fmt.Sprintf("%s: a packet leaves with the mark 0x%x, which others may see", w.marker, w.mark&w.own.Mark))
	}
	return s
}

// hook calls the base chains of a hook by priority; those of type nat only
// while the connection's NAT is not decided.
func (w *walk) hook(h Hook, nat bool) step {
	if w.dormant {
		return next
	}
	if w.beside[h] != "" {
		w.doubt("%s", w.beside[h])
	}
	if h == Prerouting || h == Output {
		defer func() { w.routed = w.mark }()
	}
	for _, c := range w.hooks[h] {
		if b := c.Base; b.NAT {
			decided := w.dnat
			if h == Input || h == Postrouting {
				decided = w.snat
			}
			if !nat || decided || w.untracked {
				continue
			}
		}
		w.base, w.chain, w.rule = c.Base, c.Name, 0
		w.tracked = !nat || c.Base.at() > priorityConntrack || h != Prerouting && h != Output
		if c.Base.Unsupported != "" {
			w.doubt("%s", c.Base.Unsupported)
		}
		if c.Base.Priority <= priorityDefrag && len(c.Rules) > 0 {
			w.doubt("priority %d, where fragments are not put together", c.Base.Priority)
		}
		s := w.walk(c)
		if s == next && c.Base.Drop {
			w.chain, w.rule = c.Name, 0
			w.tell(nil, true, false)
			s = dropped
		}
		w.chain, w.rule = "", 0
		if s == dropped || s == rejected {
			return s
		}
	}
	return next
}

// step is what a statement, a rule or a chain did.
type step uint8

const (
	next     step = iota // go on with the next statement
	endRule              // go on with the next rule
	endChain             // return to the caller
	accepted             // this base chain is done with the packet
	dropped
	rejected
)

// maxDepth is how deep the kernel lets chains call each other.
const maxDepth = 16

// call walks a chain by its name. The kernel would not have loaded a call of one
// that is not there, or of too many.
func (w *walk) call(name string) step {
	c := w.chains[name]
	switch {
	case c == nil:
		w.doubt("chain %s is not there", name)
	case c.Base != nil:
		w.doubt("jumps to the base chain %s", name)
	case w.depth == maxDepth:
		w.doubt("chains that call each other %d deep", maxDepth)
	default:
		return w.walk(c)
	}
	return dropped
}

func (w *walk) walk(c *Chain) step {
	chain, rule := w.chain, w.rule
	w.depth++
	defer func() {
		w.depth--
		w.chain, w.rule = chain, rule
	}()
	for i := range c.Rules {
		w.chain, w.rule, w.element = c.Name, i+1, ""
		if w.rules++; w.rules > w.mostRules {
			return dropped
		}
		switch s := w.run(&c.Rules[i]); s {
		case next, endRule:
		case endChain:
			return next
		default:
			return s
		}
	}
	return next
}

func (w *walk) run(rule *Rule) step {
	for _, s := range rule.Stmts {
		if r := s.run(w); r != next {
			return r
		}
	}
	return next
}

func (v Verdict) run(w *walk) step {
	v.told(w, nil)
	return v.decide(w)
}

// decide does what the verdict says, of a rule or of an element.
func (v Verdict) decide(w *walk) step {
	switch v.Kind {
	case Drop:
		return dropped
	case Reject:
		return rejected
	case Accept:
		return accepted
	case Return:
		return endChain
	case Continue:
		return next
	case Jump:
		return w.call(v.Chain)
	}
	if s := w.call(v.Chain); s != next {
		return s
	}
	return endChain
}

func (l LookupVerdict) run(w *walk) step {
	e := w.find(l.Map, l.Key)
	if e == nil {
		return endRule
	}
	e.Verdict.told(w, &e.Verdict)
	return e.Verdict.decide(w)
}

// find looks the packet's key up.
func (w *walk) find(set string, terms []Term) *Element {
	l := w.sets[set]
	if l == nil {
		w.doubt("set %s is not there", set)
		return nil
	}
	if l.odd != "" {
		w.doubt("set %s: %s", set, l.odd)
		return nil
	}
	if !l.fits(terms) {
		w.doubt("set %s: its keys are not what is looked up", set)
		return nil
	}
	for _, t := range terms {
		w.needs(t.Field)
	}
	if l.Timeout > 0 {
		return w.recall(l, terms)
	}
	key := w.key(l.Set, terms)
	if w.cuts != nil {
		l.cut(w, key, terms)
	}
	if mod := anyClient(w, terms); mod > 0 {
		return w.slotOfAny(l, key, mod)
	}
	e := l.find(key)
	w.looked(l, key, e != nil)
	return e
}

// needs doubts what connection tracking tells before it has seen the packet.
func (w *walk) needs(f Field) {
	if f == OrigSrcAddr || f == OrigDstAddr || f == OrigDstPort {
		w.needsTracking()
	}
}

func (w *walk) needsTracking() {
	if !w.tracked {
		w.doubt("a match on the connection at priority %d, before connection tracking (%d)", w.base.Priority, priorityConntrack)
	}
}

// key puts the packet's values where the set's type has them.
func (w *walk) key(s *Set, terms []Term) Key {
	var k Key
	addrs, ports := 0, 0
	for i, t := range terms {
		switch s.Key[i] {
		case TypeAddr:
			if addrs++; addrs == 1 {
				k.Addr = w.addr(t.Field)
			} else {
				k.Addr2 = w.addr(t.Field)
			}
		case TypeNet:
			k.Addr2 = w.addr(t.Field)
		case TypeProto:
			k.Proto = w.pkt.Protocol
		case TypePort:
			p := w.port
			if t.Field == OrigDstPort {
				p = w.pkt.Port
			}
			if ports++; ports == 1 {
				k.Port = p
			} else {
				k.Port2 = p
			}
		case TypeSlot:
			k.Slot = w.slot(t)
		}
	}
	return k
}

func (w *walk) addr(f Field) netip.Addr {
	switch f {
	case SrcAddr:
		return w.src
	case DstAddr:
		return w.dst
	case OrigSrcAddr:
		return w.pkt.Src
	}
	return w.pkt.Dst
}

// random takes the next choice of the path, or begins with 0 beyond its end.
func (w *walk) random(of uint32) uint32 {
	if w.step == len(w.path) {
		w.path = append(w.path, choicePoint{of: of})
	}
	w.step++
	return w.path[w.step-1].taken
}

// holds turns the result of a match into a step.
func holds(ok bool) step {
	if ok {
		return next
	}
	return endRule
}

func (m MatchNet) run(w *walk) step {
	w.needs(m.Field)
	if isSource(m.Field) {
		w.cuts.Source(m.Prefix)
	}
	return holds(m.Prefix.Contains(w.addr(m.Field)) != m.Not)
}

func (m MatchInterface) run(w *walk) step {
	if w.base.Hook == Postrouting {
		w.doubt("a match on the input interface of what leaves")
	}
	with := sim.Interface{Name: m.Name, Prefix: m.Prefix}
	w.cuts.Interface(with)
	return holds(with.Holds(w.in) != m.Not)
}

func (m MatchLocal) run(w *walk) step {
	a := w.addr(m.Field)
	if isSource(m.Field) {
		return holds(w.own.HasSource(a, w.cuts))
	}
	return holds(w.own.Has(a))
}

func (m MatchProto) run(w *walk) step { return holds(w.pkt.Protocol == m.Protocol) }

func (MatchNew) run(w *walk) step {
	w.needsTracking()
	return holds(!w.untracked)
}

func (MatchDNAT) run(w *walk) step {
	w.needsTracking()
	return holds(w.dnat)
}

// ownMark doubts bits of the mark that others may have set, or look at.
func (w *walk) ownMark(bits uint32) {
	if w.follows {
		return // every rule that changes the mark is followed
	}
	if others := bits &^ w.own.Mark; others != 0 {
		w.doubt("bits of the mark that are not the proxy's: 0x%x", others)
	}
}

func (m MatchMark) run(w *walk) step {
	w.ownMark(m.Mask)
	return holds((w.mark&m.Mask == 0) == m.Clear)
}

func (m MatchSet) run(w *walk) step { return holds((w.find(m.Set, m.Key) != nil) != m.Not) }

func (m SetMark) run(w *walk) step {
	w.ownMark(m.Mask)
	w.tell(nil, false, false)
	w.setMark(w.mark | m.Mask)
	return next
}

func (m ClearMark) run(w *walk) step {
	w.ownMark(m.Mask)
	w.setMark(w.mark &^ m.Mask)
	return next
}

func (m FlipMark) run(w *walk) step {
	w.ownMark(m.Mask)
	w.setMark(w.mark ^ m.Mask)
	return next
}

func (l LookupDNAT) run(w *walk) step {
	if !w.base.NAT || w.base.Hook != Prerouting && w.base.Hook != Output {
		w.doubt("translates the destination where the kernel does not")
	}
	e := w.find(l.Map, l.Key)
	if set := w.sets[l.Map]; set != nil {
		if set.Data != AddrData && (set.Data != AddrPortData || l.Port != 0) {
			w.doubt("map %s: has other than where to translate to", l.Map)
		}
		if set.Timeout > 0 {
			w.reads = append(w.reads, read{l.Map, cmp.Or(l.Port, w.port)})
		}
	}
	if e == nil {
		w.lacks(l)
		return endRule
	}
	if !e.To.Addr().IsValid() {
		w.doubt("map %s: translates to no address", l.Map)
	}
	w.tell(nil, false, false)
	w.dst, w.dnat = e.To.Addr(), true
	if port := cmp.Or(l.Port, e.To.Port()); port != 0 {
		w.port = port
	}
	return accepted
}

func (Masquerade) run(w *walk) step {
	if !w.base.NAT || w.base.Hook != Postrouting {
		w.doubt("masquerades where the kernel does not")
	}
	w.tell(nil, false, false)
	w.snat = true
	return accepted
}

func (Counter) run(*walk) step { return next }

// run ends the rule: what it does is not known.
func (u Unsupported) run(w *walk) step {
	w.doubt("%s", u.What)
	return endRule
}

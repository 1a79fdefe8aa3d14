package eval

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
	"github.com/proxyc/proxyc/render/nftables"
)

// Evaluator computes the outcomes of packets under an immutable table. It is safe
// for concurrent use.
//
// It uses only hooks, statements and sets, and does not depend on the purpose of
// the table. Everything that it cannot evaluate like the kernel is a doubt, never
// a match or mismatch. Maps that rules fill are empty, as for a client's first
// connection; see memory.
type Evaluator struct {
	own     *sim.Own
	name    string                                      // of the table, with its family
	family  ir.Family                                   // of the table
	hooks   [nftables.Postrouting + 1][]*nftables.Chain // base chains by priority
	equals  []*nftables.Chain                           // base chains with equal priorities
	beside  [nftables.Postrouting + 1]string            // doubts about base chains with an unknown order
	chains  map[string]*nftables.Chain
	sets    map[string]*indexed
	dormant bool            // the table is inactive
	follows bool            // report rules that affect the packet
	machine Machine         // of a Follower
	missed  map[string]bool // elements that were looked up for the packet and not found
	// translated is the translation by other rules before; optional.
	translated *sim.Destination
	// handed collects the proxy's bits of marks for rules that follow; optional.
	handed map[uint32]bool
	flags  string

	tables             sync.Map // *slots by slotsKey, created on first use
	maxRules, maxPaths int      // limits for one packet; a table of this size without loops never exceeds them
	seen               memory
}

// Named sets the name of the table, with its family, for doubts. It returns the
// Evaluator.
func (e *Evaluator) Named(name string) *Evaluator {
	e.name = name
	return e
}

// NewEvaluator indexes a table. The cost is linear in its size.
func NewEvaluator(r *nftables.Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{own: own, name: r.Family.NFT() + " " + nftables.Table, family: r.Family,
		chains: make(map[string]*nftables.Chain, len(r.Chains)), sets: make(map[string]*indexed, len(r.Sets)),
		maxRules: 1 << 12, maxPaths: 1 << 12}
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
		e.maxRules += 8 * len(c.Rules)
		if c.Base != nil {
			e.hooks[c.Base.Hook] = append(e.hooks[c.Base.Hook], c)
		}
	}
	for h, chains := range e.hooks {
		inOrder(chains, nil)
		for _, a := range chains {
			if i := slices.IndexFunc(chains, func(b *nftables.Chain) bool { return a != b && equals(a.Base, b.Base) }); i >= 0 {
				e.equals = append(e.equals, a)
				e.beside[h] = fmt.Sprintf("chains %s and %s: of one priority, so that their order is not known", chains[i].Name, a.Name)
			}
		}
	}
	for i := range r.Sets {
		e.sets[r.Sets[i].Name] = newIndexed(&r.Sets[i])
		e.maxPaths += len(r.Sets[i].Elements)
	}
	for i := range r.Chains {
		for _, rule := range r.Chains[i].Rules {
			for _, s := range rule.Stmts {
				if set, key := nftables.KeyOf(s); set != "" && e.sets[set] != nil {
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

// priorityDefrag is the priority at which the kernel reassembles fragments.
const priorityDefrag = -400

// at returns the priority at which the kernel calls a base chain at its hook. The
// kernel calls all chains of type nat at the priority of translation, ordered by
// their own priority.
func at(b *nftables.Base) int {
	switch {
	case !b.NAT:
		return b.Priority
	case b.Hook == nftables.Prerouting || b.Hook == nftables.Output:
		return nftables.PriorityDNAT
	}
	return nftables.PrioritySNAT
}

// equals reports whether the kernel calls two chains of a hook at one priority.
// The kernel calls the most recently registered one first (nf_hook_entries_grow),
// but does not report the order of registration.
func equals(b, o *nftables.Base) bool {
	return at(b) == at(o) && (b.NAT != o.NAT || b.Priority == o.Priority)
}

// inOrder sorts the base chains of a hook in the order of the kernel. Among equal
// priorities, first and the chains of its type precede the others. If first is
// nil, chains of type nat do, in listed order.
func inOrder(chains []*nftables.Chain, first *nftables.Chain) {
	nat := first == nil || first.Base.NAT
	slices.SortStableFunc(chains, func(a, b *nftables.Chain) int {
		return cmp.Or(at(a.Base)-at(b.Base), ir.Int(a.Base.NAT != nat)-ir.Int(b.Base.NAT != nat),
			a.Base.Priority-b.Base.Priority, ir.Int(a != first)-ir.Int(b != first))
	})
}

// Destinations calls add with the prefixes with which destinations are compared,
// possibly with duplicates.
func (e *Evaluator) Destinations(add func(netip.Prefix)) {
	e.own.Prefixes(add)
	for _, c := range e.chains {
		for _, rule := range c.Rules {
			for _, s := range rule.Stmts {
				if m, ok := s.(nftables.MatchNet); ok && isDestination(m.Field) {
					add(m.Prefix)
				}
				set, key := nftables.KeyOf(s)
				l := e.sets[set]
				if l == nil || !l.fits(key) {
					continue
				}
				parts := l.partsOf(key, isDestination)
				if parts == 0 {
					continue
				}
				for i := range l.Elements {
					for _, p := range prefixes(&l.Elements[i].Key, parts, l.Set) {
						add(p)
					}
				}
			}
		}
	}
}

// Outcome evaluates a packet against the table, and records in cuts the constants
// with which it compared the packet.
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
			if known == nil && w.dnat && len(w.reads) > 0 { // even if it is rejected at that destination
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

// paths evaluates a packet along every random path. known are the entries for its
// client in maps.
func (e *Evaluator) paths(pkt sim.Packet, cuts *sim.Cuts, known []sim.Remembered, visit func(*walk)) {
	var path []choicePoint
	for n := 0; ; n++ {
		if n == e.maxPaths {
			cuts.GiveUp(fmt.Sprintf("table %s: chance leads a packet more ways than %d", e.name, n))
			return
		}
		w := &walk{Evaluator: e, pkt: pkt, cuts: cuts, src: pkt.Src, dst: pkt.Dst, port: pkt.Port, path: path, known: known}
		w.dnat = pkt.Reply
		if e.translated != nil {
			w.translate(e.translated)
		}
		w.way.Chance = w.chance(w.fate())
		if w.rules > e.maxRules {
			cuts.GiveUp(fmt.Sprintf("table %s: a packet meets more rules than %d, some again and again", e.name, e.maxRules))
			return
		}
		visit(w)
		// The next path: advance the last choice that has another value.
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

// choicePoint is one random choice on a path. If share is not 0, it is the
// probability of the first of two values; otherwise all values are equally
// likely.
type choicePoint struct {
	taken, of uint32
	share     float64
}

// weight returns the probability of the chosen value.
func (p choicePoint) weight() float64 {
	switch {
	case p.share == 0:
		return 1 / float64(p.of)
	case p.taken == 0:
		return p.share
	}
	return 1 - p.share
}

// walk is the state of a packet during evaluation.
type walk struct {
	*Evaluator
	pkt  sim.Packet // the original packet
	cuts *sim.Cuts

	src, dst netip.Addr // the current addresses
	port     uint16
	in       string
	mark     uint32
	ctmark   uint32 // of its connection
	routed   uint32 // the mark with which it was routed
	marker   string // the rule that set the proxy's bits of its mark
	dnat     bool
	snat     bool
	hidden   bool // our masquerading, by a foreign translation of the source

	base      *nftables.Base // the current base chain
	tracked   bool           // connection tracking has processed it
	untracked bool           // a rule exempted it from connection tracking
	chain     string
	rule      int    // in chain, from 1
	element   string // the element that the rule found for the packet

	path    []choicePoint // the choices to make, then those that were made
	step    int           // number of choices made
	choices []string      // fingerprints of choices by the client's address and port
	depth   int           // nesting of calls
	rules   int           // number of evaluated rules

	known []sim.Remembered // entries for the client in sets
	way   sim.Way
	met   []sim.Met // rules that affected the packet
	reads []read    // maps that were read for an address
}

// doubt records that the result for the packet is unknown from here on.
func (w *walk) doubt(format string, args ...any) {
	if w.cuts == nil {
		return
	}
	w.cuts.Doubt(w.here() + ": " + fmt.Sprintf(format, args...))
}

// here returns the name of the current rule.
func (w *walk) here() string {
	where := w.where(w.chain)
	if w.rule > 0 {
		where += ", rule " + strconv.Itoa(w.rule)
	}
	return where
}

// setMark sets the mark of the packet.
func (w *walk) setMark(mark uint32) {
	if w.cuts != nil && mark&^w.mark&w.own.Mark != 0 {
		w.marker = w.here()
	}
	w.mark = mark
}

// where returns the name of a chain and its table, or only of the table if chain
// is "".
func (e *Evaluator) where(chain string) string {
	switch {
	case strings.Contains(chain, ", chain "): // of a qualified Ruleset
		return "table " + chain
	case chain != "":
		return "table " + e.name + ", chain " + chain
	}
	return "table " + e.name
}

// chance returns the result of a completed path.
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

// fate evaluates one path.
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
		if s := w.hook(nftables.Output, true); s != next {
			return s
		}
		if s := w.postrouting(); s != next || !w.own.Has(w.dst) {
			return s
		}
		// The packet returns over the loopback interface, with its NAT decided.
		w.in = "lo"
		if s := w.hook(nftables.Prerouting, false); s != next {
			return s
		}
		return w.hook(nftables.Input, false)
	}
	w.in = w.pkt.In
	if s := w.hook(nftables.Prerouting, true); s != next {
		return s
	}
	if w.own.Has(w.dst) {
		return w.hook(nftables.Input, true)
	}
	if s := w.hook(nftables.Forward, true); s != next {
		return s
	}
	return w.postrouting()
}

// postrouting evaluates the last hook of leaving packets.
func (w *walk) postrouting() step {
	s := w.hook(nftables.Postrouting, true)
	if s == next && w.mark&w.own.Mark != 0 && !w.hidden && w.handed == nil && !w.pkt.Reply && w.cuts != nil {
		w.cuts.Doubt(fmt.Sprintf("%s: a packet leaves with the mark 0x%x, which others may see", w.marker, w.mark&w.own.Mark))
	}
	return s
}

// hook calls the base chains of a hook by priority, and those of type nat only
// while the connection's NAT is undecided.
func (w *walk) hook(h nftables.Hook, nat bool) step {
	if w.dormant {
		return next
	}
	if w.beside[h] != "" {
		w.doubt("%s", w.beside[h])
	}
	if h == nftables.Prerouting || h == nftables.Output {
		defer func() { w.routed = w.mark }()
	}
	for _, c := range w.hooks[h] {
		if b := c.Base; b.NAT {
			decided := w.dnat
			if h == nftables.Input || h == nftables.Postrouting {
				decided = w.snat
			}
			if !nat || decided || w.untracked || w.pkt.Reply {
				continue
			}
		}
		w.base, w.chain, w.rule = c.Base, c.Name, 0
		w.tracked = !nat || at(c.Base) > nftables.PriorityConntrack || h != nftables.Prerouting && h != nftables.Output
		if c.Base.Unsupported != "" {
			w.doubt("%s", c.Base.Unsupported)
		}
		if c.Base.Priority <= priorityDefrag && len(c.Rules) > 0 {
			w.doubt("priority %d, where fragments are not put together", c.Base.Priority)
		}
		s := w.walk(c)
		if s == next && c.Base.Drop {
			w.chain, w.rule = c.Name, 0
			w.record(nil, true, false)
			s = dropped
		}
		w.chain, w.rule = "", 0
		if w.untracked && w.pkt.Later { // its addresses are not translated
			s = dropped
		}
		if s == dropped || s == rejected {
			return s
		}
	}
	return next
}

// step is the result of a statement, a rule or a chain.
type step uint8

const (
	next     step = iota // continue with the next statement
	endRule              // continue with the next rule
	endChain             // return to the caller
	accepted             // final for this base chain
	dropped
	rejected
)

// maxDepth is the kernel's limit of nested chains.
const maxDepth = 16

// call evaluates a chain by name. The kernel never loads a call of a missing
// chain, or too many nested calls.
func (w *walk) call(name string) step {
	c := w.chains[name]
	switch {
	case c == nil:
		w.doubt("chain %s is missing", name)
	case c.Base != nil:
		w.doubt("jumps to the base chain %s", name)
	case w.depth == maxDepth:
		w.doubt("chains that call each other %d deep", maxDepth)
	default:
		return w.walk(c)
	}
	return dropped
}

func (w *walk) walk(c *nftables.Chain) step {
	chain, rule := w.chain, w.rule
	w.depth++
	defer func() {
		w.depth--
		w.chain, w.rule = chain, rule
	}()
	for i := range c.Rules {
		w.chain, w.rule, w.element = c.Name, i+1, ""
		if w.rules++; w.rules > w.maxRules {
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

func (w *walk) run(rule *nftables.Rule) step {
	for _, s := range rule.Stmts {
		if r := w.stmt(s); r != next {
			return r
		}
	}
	return next
}

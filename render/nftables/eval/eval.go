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

// Evaluator answers for many packets what a table does to them. The table does
// not change. It may be asked by several goroutines.
//
// It knows hooks, statements and sets, and nothing of what the table is for. What it
// cannot follow as the kernel would is a doubt, never a match or none.
// Maps that rules fill are empty, as for a client's first connection; see memory.
type Evaluator struct {
	own     *sim.Own
	name    string                                      // of the table, with its family
	family  ir.Family                                   // of the table
	hooks   [nftables.Postrouting + 1][]*nftables.Chain // base chains by priority
	equals  []*nftables.Chain                           // base chains that have others at their priority
	beside  [nftables.Postrouting + 1]string            // base chains whose order is not known
	chains  map[string]*nftables.Chain
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

// Named sets the name of the table, with its family, for doubts. It returns the Evaluator.
func (e *Evaluator) Named(name string) *Evaluator {
	e.name = name
	return e
}

// NewEvaluator indexes a table, which costs what it holds.
func NewEvaluator(r *nftables.Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{own: own, name: r.Family.NFT() + " " + nftables.Table, family: r.Family,
		chains: make(map[string]*nftables.Chain, len(r.Chains)), sets: make(map[string]*indexed, len(r.Sets)),
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
			if i := slices.IndexFunc(chains, func(b *nftables.Chain) bool { return a != b && equals(a.Base, b.Base) }); i >= 0 {
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

// priorityDefrag is where the kernel puts fragments together.
const priorityDefrag = -400

// at is where the kernel calls a base chain among those of its hook: those of type nat
// all where it translates, in order of their priority.
func at(b *nftables.Base) int {
	switch {
	case !b.NAT:
		return b.Priority
	case b.Hook == nftables.Prerouting || b.Hook == nftables.Output:
		return nftables.PriorityDNAT
	}
	return nftables.PrioritySNAT
}

// equals reports whether the kernel calls two chains of a hook at one priority: the one that was
// registered last first (nf_hook_entries_grow), but of when that was it tells nothing.
func equals(b, o *nftables.Base) bool {
	return at(b) == at(o) && (b.NAT != o.NAT || b.Priority == o.Priority)
}

// inOrder sorts the base chains of a hook as the kernel calls them. Of equal ones the chain first
// comes first, with those of its type; nil: those of type nat, as they are listed.
func inOrder(chains []*nftables.Chain, first *nftables.Chain) {
	nat := first == nil || first.Base.NAT
	behind := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(chains, func(a, b *nftables.Chain) int {
		return cmp.Or(at(a.Base)-at(b.Base), behind(a.Base.NAT != nat)-behind(b.Base.NAT != nat),
			a.Base.Priority-b.Base.Priority, behind(a != first)-behind(b != first))
	})
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
				if m, ok := s.(nftables.MatchNet); ok && isDestination(m.Field) && !yield(m.Prefix) {
					return
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

	base      *nftables.Base // the base chain where the packet is
	tracked   bool           // connection tracking has seen it
	untracked bool           // a rule exempted it from that
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
	met   []sim.Met // rules that did something
	reads []read    // maps that were asked for an address
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
		if s := w.hook(nftables.Output, true); s != next {
			return s
		}
		if s := w.postrouting(); s != next || !w.own.Has(w.dst) {
			return s
		}
		// Over the loopback interface it comes back, its NAT decided.
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

// postrouting is the last hook of what leaves.
func (w *walk) postrouting() step {
	s := w.hook(nftables.Postrouting, true)
	if s == next && w.mark&w.own.Mark != 0 && w.handed == nil && w.cuts != nil {
		w.cuts.Doubt(fmt.Sprintf("%s: a packet leaves with the mark 0x%x, which others may see", w.marker, w.mark&w.own.Mark))
	}
	return s
}

// hook calls the base chains of a hook by priority; those of type nat only
// while the connection's NAT is not decided.
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
			if !nat || decided || w.untracked {
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

func (w *walk) walk(c *nftables.Chain) step {
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

func (w *walk) run(rule *nftables.Rule) step {
	for _, s := range rule.Stmts {
		if r := w.stmt(s); r != next {
			return r
		}
	}
	return next
}

package nftables

import (
	"net/netip"
	"slices"
	"strings"

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
// It knows hooks, statements and sets, and nothing of what the table is for.
// Affinity maps are empty, as for a client's first connection; an Outcome has
// Affinity if that connection is remembered where the next one looks.
type Evaluator struct {
	family  ir.Family
	own     *sim.Own
	hooks   [Postrouting + 1][]*Chain // base chains by priority
	chains  map[string]*Chain
	sets    map[string]*indexed
	dormant bool // no packet meets the table
}

// NewEvaluator indexes a table, which costs what it holds.
func NewEvaluator(r *Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{family: r.Family, own: own, chains: make(map[string]*Chain, len(r.Chains)), sets: make(map[string]*indexed, len(r.Sets)), dormant: strings.Contains(r.Flags, "dormant")}
	for i := range r.Chains {
		c := &r.Chains[i]
		e.chains[c.Name] = c
		if c.Base != nil {
			e.hooks[c.Base.Hook] = append(e.hooks[c.Base.Hook], c)
		}
	}
	for _, chains := range e.hooks {
		slices.SortStableFunc(chains, func(a, b *Chain) int { return a.Base.Priority - b.Base.Priority })
	}
	for i := range r.Sets {
		e.sets[r.Sets[i].Name] = &indexed{Set: &r.Sets[i]}
	}
	for i := range r.Chains {
		for _, rule := range r.Chains[i].Rules {
			for _, s := range rule.Stmts {
				if set, key := keyOf(s); set != "" && e.sets[set] != nil && len(key) == len(e.sets[set].Key) {
					e.sets[set].index(key)
				}
			}
		}
	}
	return e
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
				if m, ok := s.(MatchNet); ok && m.Field != SrcAddr && m.Field != OrigSrcAddr && !yield(m.Prefix) {
					return
				}
				set, key := keyOf(s)
				l := e.sets[set]
				if l == nil || len(key) != len(l.Key) {
					continue
				}
				part := l.addrPart(key, DstAddr, OrigDstAddr)
				if part == 0 {
					continue
				}
				for i := range l.Elements {
					if !yield(l.Elements[i].Key.prefix(part, l.Set)) {
						return
					}
				}
			}
		}
	}
}

// Outcome walks a packet through the table, and tells cuts what it was compared
// with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	var chances []sim.Chance
	var fate sim.Fate
	var path []choicePoint
	affinity := true
	for first := true; ; first = false {
		w := &walk{Evaluator: e, pkt: pkt, cuts: cuts, src: pkt.Src, dst: pkt.Dst, port: pkt.Port, path: path}
		end := w.fate()
		// Paths of one packet that end differently are a fault of the rules: the
		// worse end shows it.
		if first || fate == sim.Accepted && end != sim.Accepted {
			fate = end
		}
		if end == sim.Accepted {
			weight := 1.0
			for _, c := range w.path {
				weight /= float64(c.of)
			}
			to := sim.Destination{AddrPort: netip.AddrPortFrom(w.dst, w.port), SNAT: w.snat}
			chances = append(chances, sim.Chance{Destination: to, Weight: weight})
			affinity = affinity && w.kept
		}
		// The next path: the last choice that has another value takes it.
		path = w.path
		for len(path) > 0 && path[len(path)-1].taken+1 >= path[len(path)-1].of {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			break
		}
		path[len(path)-1].taken++
	}
	if fate != sim.Accepted {
		return sim.Outcome{Fate: fate}
	}
	return sim.Shared(affinity, chances)
}

// choicePoint is one random choice on a path.
type choicePoint struct{ taken, of uint32 }

// walk is a packet on its way.
type walk struct {
	*Evaluator
	pkt  sim.Packet // as the connection began
	cuts *sim.Cuts

	src, dst netip.Addr // as they are now
	port     uint16
	in       string
	mark     uint32
	dnat     bool
	snat     bool

	path  []choicePoint // the choices to take, then those that were taken
	step  int           // how many are taken
	depth int           // of calls
	at    string        // the chain
	// missed are the affinity maps that did not know the client, kept those of them that now do.
	missed []string
	kept   bool
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
		if s := w.hook(Postrouting, true); s != next || !w.own.Has(w.dst) {
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
	return w.hook(Postrouting, true)
}

// hook calls the base chains of a hook by priority; those of type nat only
// while the connection's NAT is not decided.
func (w *walk) hook(h Hook, nat bool) step {
	if w.dormant {
		return next
	}
	for _, c := range w.hooks[h] {
		if c.Base.NAT && !nat {
			continue
		}
		if c.Base.Unsupported != "" {
			w.cuts.Doubt("chain " + c.Name + ": " + c.Base.Unsupported)
		}
		s := w.chain(c)
		if s == next && c.Base.Drop {
			s = dropped
		}
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

// call walks a chain by its name.
func (w *walk) call(name string) step {
	c := w.chains[name]
	if c == nil || w.depth == maxDepth {
		return dropped // the kernel would not have loaded it
	}
	return w.chain(c)
}

func (w *walk) chain(c *Chain) step {
	above := w.at
	w.depth++
	w.at = c.Name
	defer func() { w.depth, w.at = w.depth-1, above }()
	for i := range c.Rules {
		switch s := w.rule(&c.Rules[i]); s {
		case next, endRule:
		case endChain:
			return next
		default:
			return s
		}
	}
	return next
}

func (w *walk) rule(rule *Rule) step {
	for _, s := range rule.Stmts {
		if r := s.run(w); r != next {
			return r
		}
	}
	return next
}

func (v Verdict) run(w *walk) step {
	switch v.Kind {
	case Drop:
		return dropped
	case Reject:
		return rejected
	case Accept:
		return accepted
	case Return:
		return endChain
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
	return e.Verdict.run(w)
}

// find looks the packet's key up. Maps that rules fill are empty.
func (w *walk) find(set string, terms []Term) *Element {
	l := w.sets[set]
	if l == nil || len(terms) != len(l.Key) {
		w.cuts.Doubt("set " + set + ": is not there, or has another type") // no kernel has such a rule
		return nil
	}
	if l.Unsupported != "" {
		w.cuts.Doubt("set " + l.Name + ": " + l.Unsupported)
	}
	if l.Strays {
		w.cuts.Doubt("set " + l.Name + ": elements of another form")
	}
	if l.Timeout > 0 {
		w.missed = append(w.missed, l.Name)
		return nil
	}
	key := w.key(l.Set, terms)
	if w.cuts != nil {
		l.cut(w, key, terms)
	}
	return l.find(key)
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
			k.Slot = w.random(t.Mod)
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
		w.path = append(w.path, choicePoint{0, of})
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
	if m.Field == SrcAddr || m.Field == OrigSrcAddr {
		w.cuts.Source(m.Prefix)
	}
	return holds(m.Prefix.Contains(w.addr(m.Field)) != m.Not)
}

func (m MatchInterface) run(w *walk) step {
	with := sim.Interface{Name: m.Name, Prefix: m.Prefix}
	w.cuts.Interface(with)
	return holds(with.Holds(w.in) != m.Not)
}

func (m MatchLocal) run(w *walk) step {
	a := w.addr(m.Field)
	if m.Field == SrcAddr || m.Field == OrigSrcAddr {
		return holds(w.own.HasSource(a, w.cuts))
	}
	return holds(w.own.Has(a))
}

func (m MatchProto) run(w *walk) step { return holds(w.pkt.Protocol == m.Protocol) }
func (MatchNew) run(*walk) step       { return next }
func (MatchDNAT) run(w *walk) step    { return holds(w.dnat) }
func (m MatchMark) run(w *walk) step  { return holds(w.mark&m.Mask != 0) }

func (m MatchSet) run(w *walk) step { return holds((w.find(m.Set, m.Key) != nil) != m.Not) }

func (m SetMark) run(w *walk) step {
	w.mark |= m.Mask
	return next
}

func (m ClearMark) run(w *walk) step {
	w.mark &^= m.Mask
	return next
}

func (l LookupDNAT) run(w *walk) step {
	e := w.find(l.Map, l.Key)
	if e == nil {
		return endRule
	}
	w.dst, w.port, w.dnat = e.To.Addr(), e.To.Port(), true
	if l.Port != 0 {
		w.port = l.Port
	}
	return accepted
}

func (u Update) run(w *walk) step {
	if (u.Key.Field == OrigSrcAddr || u.Key.Field == SrcAddr) && slices.Contains(w.missed, u.Map) {
		w.kept = true
	}
	return next
}

func (Masquerade) run(w *walk) step {
	w.snat = true
	return accepted
}

func (Counter) run(*walk) step { return next }

// run ends the rule: what it does is not known.
func (u Unsupported) run(w *walk) step {
	w.cuts.Doubt(w.family.NFT() + " chain " + w.at + ": " + u.What)
	return endRule
}

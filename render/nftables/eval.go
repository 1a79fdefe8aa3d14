package nftables

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir/sim"
)

// Eval walks a packet through the table as the kernel would, with every
// outcome of every random choice, on a node for which local reports which
// addresses are its own.
//
// It knows hooks, statements and sets, and nothing of what the table is for.
// Affinity maps are empty, as for a client's first connection; an Outcome has
// Affinity if that connection is remembered where the next one looks.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	var out sim.Outcome
	var path []choicePoint
	for first := true; ; first = false {
		w := &walk{r: r, pkt: pkt, local: local, src: pkt.Src, dst: pkt.Dst, port: pkt.Port, path: path}
		one := w.outcome()
		out = merge(out, one, first)
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
	slices.SortFunc(out.Destinations, compareDestinations)
	out.Destinations = slices.Compact(out.Destinations)
	return out
}

func compareDestinations(a, b sim.Destination) int {
	if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
		return c
	}
	return btoi(a.SNAT) - btoi(b.SNAT)
}

// merge adds the outcome of one path. Paths of one packet that end differently
// are a fault of the rules: the worse end shows it.
func merge(out, one sim.Outcome, first bool) sim.Outcome {
	if first {
		return one
	}
	if one.Fate != sim.Accepted || out.Fate != sim.Accepted {
		if out.Fate == sim.Accepted {
			return one
		}
		return out
	}
	out.Destinations = append(out.Destinations, one.Destinations...)
	out.Affinity = out.Affinity && one.Affinity
	return out
}

// choicePoint is one random choice on a path.
type choicePoint struct{ taken, of uint32 }

// walk is a packet on its way.
type walk struct {
	r     *Ruleset
	pkt   sim.Packet // as the connection began
	local func(netip.Addr) bool

	src, dst netip.Addr // as they are now
	port     uint16
	in       string
	mark     uint32
	dnat     bool
	snat     bool

	path  []choicePoint // the choices to take, then those that were taken
	step  int           // how many are taken
	depth int           // of calls
	// missed are the affinity maps that did not know the client, kept those of them that now do.
	missed []string
	kept   bool
}

// outcome walks one path.
func (w *walk) outcome() sim.Outcome {
	switch w.hooks() {
	case dropped:
		return sim.Outcome{Fate: sim.Dropped}
	case rejected:
		return sim.Outcome{Fate: sim.Rejected}
	}
	if !w.dnat && !w.snat {
		return sim.Outcome{}
	}
	return sim.Outcome{
		Fate:         sim.Accepted,
		Destinations: []sim.Destination{{AddrPort: netip.AddrPortFrom(w.dst, w.port), SNAT: w.snat}},
		Affinity:     w.kept,
	}
}

// hooks passes the packet through the kernel's hooks.
func (w *walk) hooks() step {
	if w.pkt.FromNode() {
		if s := w.hook(Output, true); s != next {
			return s
		}
		if s := w.hook(Postrouting, true); s != next || !w.local(w.dst) {
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
	if w.local(w.dst) {
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
	var chains []*Chain
	for i := range w.r.Chains {
		c := &w.r.Chains[i]
		if c.Base != nil && c.Base.Hook == h && (nat || !c.Base.NAT) {
			chains = append(chains, c)
		}
	}
	slices.SortStableFunc(chains, func(a, b *Chain) int { return a.Base.Priority - b.Base.Priority })
	for _, c := range chains {
		if s := w.chain(c.Name); s == dropped || s == rejected {
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

func (w *walk) chain(name string) step {
	i := slices.IndexFunc(w.r.Chains, func(c Chain) bool { return c.Name == name })
	if i < 0 || w.depth == maxDepth {
		return dropped // the kernel would not have loaded it
	}
	w.depth++
	defer func() { w.depth-- }()
	for _, rule := range w.r.Chains[i].Rules {
		switch s := w.rule(rule); s {
		case next, endRule:
		case endChain:
			return next
		default:
			return s
		}
	}
	return next
}

func (w *walk) rule(rule Rule) step {
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
	case Jump:
		return w.chain(v.Chain)
	}
	if s := w.chain(v.Chain); s != next {
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
	i := slices.IndexFunc(w.r.Sets, func(s Set) bool { return s.Name == set })
	if i < 0 || len(terms) != len(w.r.Sets[i].Key) {
		return nil
	}
	s := &w.r.Sets[i]
	if s.Timeout > 0 {
		w.missed = append(w.missed, s.Name)
		return nil
	}
	key := w.key(s, terms)
	for i := range s.Elements {
		if s.holds(&s.Elements[i], key) {
			return &s.Elements[i]
		}
	}
	return nil
}

func (s *Set) holds(e *Element, key Key) bool {
	if !s.Interval {
		return e.Key == key
	}
	key.Bits = e.Key.Bits
	if !netip.PrefixFrom(e.Key.Addr2, int(e.Key.Bits)).Contains(key.Addr2) {
		return false
	}
	key.Addr2 = e.Key.Addr2
	return e.Key == key
}

// key puts the packet's values where the set's type has them.
func (w *walk) key(s *Set, terms []Term) Key {
	var k Key
	addrs, ports := 0, 0
	for i, t := range terms {
		switch s.Key[i] {
		case TypeAddr, TypeNet:
			if addrs++; addrs == 1 {
				k.Addr = w.addr(t.Field)
			} else {
				k.Addr2 = w.addr(t.Field)
			}
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
	return holds(m.Prefix.Contains(w.addr(m.Field)) != m.Not)
}

func (m MatchInterface) run(w *walk) step {
	ok := w.in == m.Name
	if m.Prefix {
		ok = len(w.in) >= len(m.Name) && w.in[:len(m.Name)] == m.Name
	}
	return holds(ok != m.Not)
}

func (m MatchLocal) run(w *walk) step {
	a := w.addr(m.Field)
	return holds(a.IsLoopback() || w.local(a))
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
	if u.Key.Field == OrigSrcAddr && slices.Contains(w.missed, u.Map) {
		w.kept = true
	}
	return next
}

func (Masquerade) run(w *walk) step {
	w.snat = true
	return accepted
}

// run ends the rule: what it does is not known.
func (Unsupported) run(*walk) step { return endRule }

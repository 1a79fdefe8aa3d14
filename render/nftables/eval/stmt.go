package eval

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
)

// stmt evaluates a statement for a packet.
func (w *walk) stmt(s nftables.Stmt) step {
	switch s := s.(type) {
	case nftables.MatchNet:
		return w.matchNet(s)
	case nftables.MatchInterface:
		return w.matchInterface(s)
	case nftables.MatchLocal:
		return w.matchLocal(s)
	case nftables.MatchProto:
		return holds(w.pkt.Protocol == s.Protocol)
	case nftables.MatchNew:
		w.needsTracking()
		return holds(!w.untracked)
	case nftables.MatchDNAT:
		w.needsTracking()
		return holds(w.dnat)
	case nftables.MatchMark:
		w.ownMark(s.Mask)
		return holds((w.mark&s.Mask == 0) == s.Clear)
	case nftables.MatchSet:
		return holds((w.find(s.Set, s.Key) != nil) != s.Not)
	case nftables.SetMark:
		w.ownMark(s.Mask)
		w.record(nil, false, false)
		w.setMark(w.mark | s.Mask)
	case nftables.ClearMark:
		w.ownMark(s.Mask)
		w.setMark(w.mark &^ s.Mask)
	case nftables.FlipMark:
		w.ownMark(s.Mask)
		w.setMark(w.mark ^ s.Mask)
	case nftables.LookupVerdict:
		return w.lookupVerdict(s)
	case nftables.LookupDNAT:
		return w.lookupDNAT(s)
	case nftables.Update:
		w.update(s)
	case nftables.Masquerade:
		return w.masquerade()
	case nftables.Verdict:
		w.recordVerdict(s, nil)
		return w.decide(s)
	case Foreign:
		return w.foreign(s)
	case nftables.Counter:
	case nftables.Unsupported: // its effect is unknown
		w.doubt("%s", s.What)
		return endRule
	default:
		w.doubt("a statement of type %T, which is not evaluated", s)
		return endRule
	}
	return next
}

// decide applies a verdict of a rule or of an element.
func (w *walk) decide(v nftables.Verdict) step {
	switch v.Kind {
	case nftables.Drop:
		return dropped
	case nftables.Reject:
		return rejected
	case nftables.RejectWith:
		return w.rejectWith(v)
	case nftables.Accept:
		return accepted
	case nftables.Return:
		return endChain
	case nftables.Continue:
		return next
	}
	if s := w.call(v.Chain); s != next {
		return s
	}
	if v.Kind == nftables.Jump {
		return endRule // the kernel continues with the next rule
	}
	return endChain
}

// rejectWith rejects a packet with another answer. Only our own rules need a
// certain answer. A TCP reset answers nothing else than TCP.
func (w *walk) rejectWith(v nftables.Verdict) step {
	table, _, qualified := strings.Cut(w.chain, ", chain ")
	if _, name, _ := strings.Cut(table, " "); !qualified || name == nftables.Table || name == "kube-proxy" {
		w.doubt("%s, not with ICMP port unreachable", v.AppendText(nil, w.family))
	}
	if v.Chain == "tcp reset" && w.pkt.Protocol != ir.TCP {
		return dropped
	}
	return rejected
}

func (w *walk) lookupVerdict(l nftables.LookupVerdict) step {
	e := w.find(l.Map, l.Key)
	if e == nil {
		return endRule
	}
	w.recordVerdict(e.Verdict, &e.Verdict)
	return w.decide(e.Verdict)
}

// find looks up the packet's key.
func (w *walk) find(set string, terms []nftables.Term) *nftables.Element {
	l := w.sets[set]
	if l == nil {
		w.doubt("set %s is missing", set)
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
	w.recordLookup(l, key, e != nil)
	return e
}

// needs reports a doubt about a connection tracking field before connection
// tracking has processed the packet.
func (w *walk) needs(f nftables.Field) {
	if f == nftables.OrigSrcAddr || f == nftables.OrigDstAddr || f == nftables.OrigDstPort {
		w.needsTracking()
	}
}

func (w *walk) needsTracking() {
	if !w.tracked {
		w.doubt("a match on the connection at priority %d, before connection tracking (%d)", w.base.Priority, nftables.PriorityConntrack)
	}
}

// key returns the packet's values in the key layout of the set.
func (w *walk) key(s *nftables.Set, terms []nftables.Term) nftables.Key {
	var k nftables.Key
	addrs, ports := 0, 0
	for i, t := range terms {
		switch s.Key[i] {
		case nftables.TypeAddr:
			if addrs++; addrs == 1 {
				k.Addr = w.addr(t.Field)
			} else {
				k.Addr2 = w.addr(t.Field)
			}
		case nftables.TypeNet:
			k.Addr2 = w.addr(t.Field)
		case nftables.TypeProto:
			k.Proto = w.pkt.Protocol
		case nftables.TypePort:
			p := w.port
			if t.Field == nftables.OrigDstPort {
				p = w.pkt.Port
			}
			if ports++; ports == 1 {
				k.Port = p
			} else {
				k.Port2 = p
			}
		case nftables.TypeSlot:
			k.Slot = w.slot(t)
		}
	}
	return k
}

func (w *walk) addr(f nftables.Field) netip.Addr {
	switch f {
	case nftables.SrcAddr:
		return w.src
	case nftables.DstAddr:
		return w.dst
	case nftables.OrigSrcAddr:
		return w.pkt.Src
	}
	return w.pkt.Dst
}

// random returns the next choice of the path, or 0 after its end.
func (w *walk) random(of uint32) uint32 {
	if w.step == len(w.path) {
		w.path = append(w.path, choicePoint{of: of})
	}
	w.step++
	return w.path[w.step-1].taken
}

// holds converts the result of a match to a step.
func holds(ok bool) step {
	if ok {
		return next
	}
	return endRule
}

func (w *walk) matchNet(m nftables.MatchNet) step {
	w.needs(m.Field)
	if isSource(m.Field) {
		w.cuts.Source(m.Prefix)
	}
	return holds(m.Prefix.Contains(w.addr(m.Field)) != m.Not)
}

func (w *walk) matchInterface(m nftables.MatchInterface) step {
	if w.base.Hook == nftables.Postrouting {
		w.doubt("a match on the input interface of what leaves")
	}
	with := sim.Interface{Name: m.Name, Prefix: m.Prefix}
	w.cuts.Interface(with)
	return holds(with.Matches(w.in) != m.Not)
}

func (w *walk) matchLocal(m nftables.MatchLocal) step {
	a := w.addr(m.Field)
	if isSource(m.Field) {
		return holds(w.own.HasSource(a, w.cuts) != m.Not)
	}
	return holds(w.own.Has(a) != m.Not)
}

// ownMark reports a doubt about mark bits that other programs may set or use.
func (w *walk) ownMark(bits uint32) {
	if w.follows {
		return // every rule that changes the mark is evaluated
	}
	if others := bits &^ w.own.Mark; others != 0 {
		w.doubt("bits of the mark that are not the proxy's: 0x%x", others)
	}
}

func (w *walk) lookupDNAT(l nftables.LookupDNAT) step {
	if !w.base.NAT || w.base.Hook != nftables.Prerouting && w.base.Hook != nftables.Output {
		w.doubt("translates the destination where the kernel does not")
	}
	e := w.find(l.Map, l.Key)
	if set := w.sets[l.Map]; set != nil {
		if set.Data != nftables.AddrData && (set.Data != nftables.AddrPortData || l.Port != 0) {
			w.doubt("map %s: has other than where to translate to", l.Map)
		}
		if set.Timeout > 0 {
			w.reads = append(w.reads, read{l.Map, cmp.Or(l.Port, w.port)})
		}
	}
	if e == nil {
		w.recordMissing(l)
		return endRule
	}
	if !e.To.Addr().IsValid() {
		w.doubt("map %s: translates to no address", l.Map)
	}
	w.record(nil, false, false)
	w.dst, w.dnat = e.To.Addr(), true
	if port := cmp.Or(l.Port, e.To.Port()); port != 0 {
		w.port = port
	}
	return accepted
}

func (w *walk) masquerade() step {
	if !w.base.NAT || w.base.Hook != nftables.Postrouting {
		w.doubt("masquerades where the kernel does not")
	}
	w.record(nil, false, false)
	w.snat = true
	return accepted
}

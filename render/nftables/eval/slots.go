package eval

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
)

// A packet whose source port is not known stands for all clients at its source
// address. Where the client's hash is looked up, each of the elements that there are for
// its slots is one way to go, once for all slots that lead to the same backend.

// slotsKey is what clients look up: all of the key but the slot.
type slotsKey struct {
	set string
	key nftables.Key
	mod uint32
}

// slots are the elements that the clients of a slotsKey find, each once; nil for none.
type slots struct {
	elements []*nftables.Element
	choice   string
}

// slot returns the number of a packet, which chance or its client chooses.
func (w *walk) slot(t nftables.Term) uint32 {
	switch {
	case t.Field == nftables.Random:
		return w.random(t.Mod)
	case w.pkt.SrcPort == 0:
		return 0 // see anyClient
	}
	m := ir.Maglev{Slots: t.Mod}
	return m.Slot(w.src, w.pkt.SrcPort)
}

// anyClient returns how many slots a lookup has that the packet's client chooses,
// while nobody knows which one that is; 0: it has none such.
func anyClient(w *walk, terms []nftables.Term) uint32 {
	for _, t := range terms {
		if t.Field == nftables.ClientHash && w.pkt.SrcPort == 0 {
			return t.Mod
		}
	}
	return 0
}

// slotOfAny returns what one client finds, on each way another.
func (w *walk) slotOfAny(l *indexed, key nftables.Key, mod uint32) *nftables.Element {
	s := w.slotsOf(l, key, mod)
	if s.choice != "" {
		w.choices = append(w.choices, s.choice)
	}
	return s.elements[w.random(uint32(len(s.elements)))]
}

func (e *Evaluator) slotsOf(l *indexed, key nftables.Key, mod uint32) *slots {
	key.Slot = 0
	at := slotsKey{l.Name, key, mod}
	if known, ok := e.tables.Load(at); ok {
		return known.(*slots)
	}
	type found struct {
		verdict nftables.Verdict
		to      netip.AddrPort
		is      bool
	}
	s := &slots{}
	seen := map[found]bool{}
	table := make([]netip.AddrPort, mod)
	for key.Slot = range mod {
		element, what := l.find(key), found{}
		if element != nil {
			what = found{element.Verdict, element.To, true}
			table[key.Slot] = element.To
		}
		if !seen[what] {
			seen[what] = true
			s.elements = append(s.elements, element)
		}
	}
	if len(s.elements) > 1 {
		s.choice = ir.MaglevChoice(table)
	}
	e.tables.Store(at, s)
	return s
}

package eval

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
)

// A packet without a source port represents all clients at its source address. A
// lookup by the client's hash then has one path for each element of its slots;
// slots with the same backend share a path.

// slotsKey is the key of a lookup without the slot.
type slotsKey struct {
	set string
	key nftables.Key
	mod uint32
}

// slots are the elements for the clients of a slotsKey, without duplicates; nil
// for none.
type slots struct {
	elements []*nftables.Element
	choice   string
}

// slot returns the slot of a packet, chosen at random or by its client.
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

// anyClient returns the number of slots of a lookup by the client's hash, if the
// client's port is unknown; otherwise 0.
func anyClient(w *walk, terms []nftables.Term) uint32 {
	for _, t := range terms {
		if t.Field == nftables.ClientHash && w.pkt.SrcPort == 0 {
			return t.Mod
		}
	}
	return 0
}

// slotOfAny returns the element for one client, a different one on each path.
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

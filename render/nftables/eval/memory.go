package eval

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
)

// Sets that rules fill contain clients of earlier connections. A packet is first
// evaluated for an unknown client; sim.WithAffinity evaluates it again for a
// remembered one. In addition, a map must lead only to backends of those
// frontends that read it, whatever its content.

// recall looks up the client in a set that rules fill.
func (w *walk) recall(l *indexed, terms []nftables.Term) *nftables.Element {
	switch {
	case len(terms) != 1 || !isSource(terms[0].Field):
		w.doubt("set %s: rules fill it, and look for other than clients in it", l.Name)
	case l.Data != nftables.NoData && l.Data != nftables.AddrData:
		w.doubt("set %s: rules fill it, with other than addresses", l.Name)
	case l.Size > 0 && l.Size < nftables.MaxClients:
		w.doubt("set %s: has room for %d clients only", l.Name, l.Size)
	}
	m := sim.Memory{Name: l.Name, Timeout: l.forgets(), Pins: l.Data != nftables.NoData}
	for _, k := range w.known {
		if k.In == l.Name {
			w.way.Hit = append(w.way.Hit, m)
			return &nftables.Element{To: netip.AddrPortFrom(k.To, 0)}
		}
	}
	w.way.Missed = append(w.way.Missed, m)
	return nil
}

// update adds the client to a set.
func (w *walk) update(u nftables.Update) {
	l := w.sets[u.Map]
	switch {
	case l == nil:
		w.doubt("set %s is missing", u.Map)
		return
	case l.odd != "":
		w.doubt("set %s: %s", u.Map, l.odd)
	case l.Timeout == 0:
		w.doubt("set %s: a rule fills it", u.Map)
	case !isSource(u.Key.Field):
		w.doubt("set %s: a rule fills it with other than clients", u.Map)
	}
	w.needs(u.Key.Field)
	r := sim.Remembered{In: u.Map}
	if l.Data != nftables.NoData {
		if l.Data != nftables.AddrData || u.Data.Field.Type() != nftables.TypeAddr {
			w.doubt("map %s: a rule fills it with other than addresses", u.Map)
		}
		w.needs(u.Data.Field)
		r.To = w.addr(u.Data.Field)
	}
	w.way.Memory = append(w.way.Memory, r)
	w.seen.write(r)
}

// read is a map of addresses, and the port of the destination.
type read struct {
	set  string
	port uint16
}

// forgets returns the timeout of a client in a set that rules fill.
func (l *indexed) forgets() time.Duration {
	if l.Timeout <= nftables.NoTimeout {
		return sim.Forever
	}
	return l.Timeout
}

// memory is the content of maps after all packets, and the destinations that
// their readers allow.
type memory struct {
	lock    sync.Mutex
	written map[sim.Remembered]bool
	wanted  map[read][]netip.AddrPort // backends of all readers
}

func (m *memory) write(r sim.Remembered) {
	if !r.To.IsValid() {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	ir.SetIn(&m.written, r, true)
}

// asked records the backends of readers of maps, in any order.
func (m *memory) asked(reads []read, to []netip.AddrPort) {
	if len(reads) == 0 {
		return
	}
	slices.SortFunc(to, netip.AddrPort.Compare)
	to = slices.Compact(to)
	slices.SortFunc(reads, func(a, b read) int { return cmp.Or(strings.Compare(a.set, b.set), cmp.Compare(a.port, b.port)) })
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.wanted == nil {
		m.wanted = map[read][]netip.AddrPort{}
	}
	for _, r := range slices.Compact(reads) {
		known, ok := m.wanted[r]
		switch {
		case !ok:
			m.wanted[r] = to
		case !slices.Equal(known, to):
			m.wanted[r] = slices.DeleteFunc(slices.Clone(known), func(a netip.AddrPort) bool { return !slices.Contains(to, a) })
		}
	}
}

// maxDoubts is the maximum number of reported doubts about maps.
const maxDoubts = 10

// Doubts returns the doubts that do not depend on a single packet: a map may
// forward clients to a destination that is not one of their backends. It must be
// called after all packets were evaluated.
func (e *Evaluator) Doubts() (all []string) {
	e.seen.lock.Lock()
	defer e.seen.lock.Unlock()
	by := map[string][]netip.Addr{}
	for w := range e.seen.written {
		by[w.In] = append(by[w.In], w.To)
	}
	for r, to := range e.seen.wanted {
		for _, a := range by[r.set] {
			if at := netip.AddrPortFrom(a, r.port); !slices.Contains(to, at) {
				all = append(all, fmt.Sprintf("table %s: map %s may lead clients to %s, which is no backend of theirs", e.name, r.set, at))
			}
		}
	}
	slices.SortFunc(all, strings.Compare)
	if n := len(all) - maxDoubts; n > 0 {
		all = append(all[:maxDoubts], fmt.Sprintf("table %s: and %d more such", e.name, n))
	}
	return all
}

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/ir/sim"
)

// Maps that rules fill hold clients of connections before. A packet is walked as
// that of a client whom none knows; then once more for each of the ways that it
// took, as the same client's next one, with what rules remembered on the way. If
// that leads to the same backend the client sticks to it. And whatever a map
// may hold, it must lead nowhere but to backends of those who look into it.

// remembered is a client in a set that rules fill, or what a map says of it.
type remembered struct {
	set string
	to  netip.Addr // of maps
}

// recall looks the client up in a set that rules fill.
func (w *walk) recall(l *indexed, terms []Term) *Element {
	switch {
	case len(terms) != 1 || !isSource(terms[0].Field):
		w.doubt("set %s: rules fill it, and look for other than clients in it", l.Name)
	case l.Data != NoData && l.Data != AddrData:
		w.doubt("set %s: rules fill it, with other than addresses", l.Name)
	case l.Size > 0 && l.Size < MostClients:
		w.doubt("set %s: has room for %d clients only", l.Name, l.Size)
	}
	for _, k := range w.known {
		if k.set == l.Name {
			w.hits = append(w.hits, l.Name)
			return &Element{To: netip.AddrPortFrom(k.to, 0)}
		}
	}
	if !slices.Contains(w.missed, l.Name) {
		w.missed = append(w.missed, l.Name)
	}
	return nil
}

func (u Update) run(w *walk) step {
	l := w.sets[u.Map]
	switch {
	case l == nil:
		w.doubt("set %s is not there", u.Map)
		return next
	case l.odd != "":
		w.doubt("set %s: %s", u.Map, l.odd)
	case l.Timeout == 0:
		w.doubt("set %s: a rule fills it", u.Map)
	case !isSource(u.Key.Field):
		w.doubt("set %s: a rule fills it with other than clients", u.Map)
	}
	w.needs(u.Key.Field)
	r := remembered{set: u.Map}
	if l.Data != NoData {
		if l.Data != AddrData || typeOf(u.Data.Field) != TypeAddr {
			w.doubt("map %s: a rule fills it with other than addresses", u.Map)
		}
		w.needs(u.Data.Field)
		r.to = w.addr(u.Data.Field)
	}
	w.writes = append(w.writes, r)
	w.seen.write(r)
	return next
}

// affinity is what maps make of a client's next connection.
type affinity struct {
	paths  []stay
	missed []string
	reads  []read
}

// stay is one way of a packet, and what was remembered on it.
type stay struct {
	to     sim.Destination
	writes []remembered
}

// read is a map of addresses, and the port to which its answer leads.
type read struct {
	set  string
	port uint16
}

// path notes what a walk came to.
func (a *affinity) path(w *walk, c sim.Chance) {
	for _, set := range w.missed {
		if !slices.Contains(a.missed, set) {
			a.missed = append(a.missed, set)
		}
	}
	for _, r := range w.reads {
		if !slices.Contains(a.reads, r) {
			a.reads = append(a.reads, r)
		}
	}
	if c.Fate == sim.Accepted {
		a.paths = append(a.paths, stay{c.Destination, w.writes})
	}
}

// settle enters the affinity in the Outcome of all paths together.
func (a *affinity) settle(o *sim.Outcome, e *Evaluator, pkt sim.Packet, cuts *sim.Cuts) {
	doubt := func(format string, args ...any) {
		cuts.Doubt("table " + e.name + ": " + fmt.Sprintf(format, args...))
	}
	sticky := 0
	for _, p := range a.paths {
		if len(p.writes) == 0 {
			continue
		}
		hit, missed := false, false
		e.paths(pkt, cuts, p.writes, func(w *walk, fate sim.Fate) {
			if len(w.hits) == 0 {
				missed = true
				return
			}
			hit = true
			if fate != sim.Accepted || w.chance(fate).Destination != p.to {
				doubt("set %s: leads a client that it knows elsewhere than before", w.hits[0])
			}
			timeout := e.sets[w.hits[0]].forgets()
			if o.Timeout != 0 && o.Timeout != timeout {
				doubt("set %s: forgets after %s, others after %s", w.hits[0], timeout, o.Timeout)
			}
			o.Timeout = timeout
		})
		if hit && missed {
			doubt("set %s: knows a client or not as chance has it", p.writes[0].set)
		}
		if hit {
			sticky++
		}
	}
	o.Affinity = sticky > 0
	if sticky > 0 && sticky < len(a.paths) {
		doubt("clients of some backends are remembered, of others not")
	}
	for _, set := range a.missed {
		if e.sets[set].Data != NoData {
			continue
		}
		e.paths(pkt, cuts, []remembered{{set: set}}, func(w *walk, fate sim.Fate) {
			if len(w.hits) > 0 && (fate != o.Fate || fate == sim.Accepted && !slices.Contains(o.Destinations, w.chance(fate).Destination)) {
				doubt("set %s: what becomes of a client that it knows becomes of no other", set)
			}
		})
	}
	if len(a.reads) > 0 {
		to := make([]netip.AddrPort, len(o.Destinations))
		for i, d := range o.Destinations {
			to[i] = d.AddrPort
		}
		for _, r := range a.reads {
			e.seen.read(r, to)
		}
	}
}

// forgets returns how long a set that rules fill holds a client.
func (l *indexed) forgets() time.Duration {
	if l.Timeout <= noTimeout {
		return sim.Forever
	}
	return l.Timeout
}

// noTimeout is the Timeout of a set that rules fill and that forgets nothing.
const noTimeout = 1

// memory is what all packets together put into maps, and where they may be led
// by them.
type memory struct {
	lock    sync.Mutex
	written map[remembered]bool
	wanted  map[read][]netip.AddrPort // backends of all who look there
}

func (m *memory) write(r remembered) {
	if !r.to.IsValid() {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.written == nil {
		m.written = map[remembered]bool{}
	}
	m.written[r] = true
}

func (m *memory) read(r read, to []netip.AddrPort) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.wanted == nil {
		m.wanted = map[read][]netip.AddrPort{}
	}
	if known, ok := m.wanted[r]; ok {
		if slices.Equal(known, to) {
			return
		}
		to = slices.DeleteFunc(slices.Clone(known), func(a netip.AddrPort) bool { return !slices.Contains(to, a) })
	}
	m.wanted[r] = to
}

// mostTold is how many doubts about maps are told.
const mostTold = 10

// Doubts returns what cannot be said of single packets: where a map may lead
// clients to what is no backend of theirs. It is asked when all packets were walked.
func (e *Evaluator) Doubts() (all []string) {
	e.seen.lock.Lock()
	defer e.seen.lock.Unlock()
	by := map[string][]netip.Addr{}
	for w := range e.seen.written {
		by[w.set] = append(by[w.set], w.to)
	}
	for r, to := range e.seen.wanted {
		for _, a := range by[r.set] {
			if at := netip.AddrPortFrom(a, r.port); !slices.Contains(to, at) {
				all = append(all, fmt.Sprintf("table %s: map %s may lead clients to %s, which is no backend of theirs", e.name, r.set, at))
			}
		}
	}
	slices.SortFunc(all, strings.Compare)
	if n := len(all) - mostTold; n > 0 {
		all = append(all[:mostTold], fmt.Sprintf("table %s: and %d more such", e.name, n))
	}
	return all
}

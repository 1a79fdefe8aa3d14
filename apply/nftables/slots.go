package nftables

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// A backend's slot is its index in its pool. All slots are equally likely, so their order does not
// matter. Backends keep their slots, whatever the order of the compiled pool, and a new or removed
// endpoint changes one or two elements. The pools in force have the order that was applied.

// keepSlots returns a Service with the slots of its earlier version, as far as the pools have the
// same backends.
func keepSlots(old, now *ir.Service) *ir.Service {
	if old == nil || now == nil {
		return now
	}
	return withSlots(now, func(p int) []netip.AddrPort {
		pool := &now.Pools[p]
		i, found := slices.BinarySearchFunc(old.Pools, pool, func(o ir.Pool, p *ir.Pool) int {
			return cmp.Or(o.Port.Compare(p.Port), cmp.Compare(o.Policy, p.Policy))
		})
		if !found {
			return nil
		}
		slots := make([]netip.AddrPort, len(old.Pools[i].Backends))
		for j := range slots {
			slots[j] = old.Pools[i].Backends[j].AddrPort
		}
		return slots
	})
}

// keepAllSlots is keepSlots for the Services of Programs.
func keepAllSlots(applied, want ir.Programs) (kept ir.Programs) {
	for f, p := range ir.Present(want) {
		*kept.At(f) = p
		old := applied.Of(f)
		if old == nil {
			continue
		}
		q := *p
		q.Services = slices.Clone(p.Services)
		for i := range q.Services {
			if at, ok := old.Find(q.Services[i].Name); ok {
				q.Services[i] = *keepSlots(&old.Services[at], &q.Services[i])
			}
		}
		*kept.At(f) = &q
	}
	return kept
}

// adoptSlots returns Programs with the slots that exist in the kernel, for Services of which a Plan
// would change slots. It returns false if there are none.
func adoptSlots(plan *Plan, want ir.Programs) (adopted ir.Programs, ok bool) {
	for f, p := range ir.Present(want) {
		*adopted.At(f) = p
		moved := movedIn(plan.families.Of(f))
		if len(moved.services) == 0 {
			continue
		}
		ok = true
		q := *p
		q.Services = slices.Clone(p.Services)
		for i := range q.Services {
			if s := &p.Services[i]; moved.services[s.Name] {
				q.Services[i] = *withSlots(s, moved.slots(rules.LowerService(&p.Node, f, s), s))
			}
		}
		*adopted.At(f) = &q
	}
	return adopted, ok
}

// backendMaps are the fixed maps with a slot in their keys. A shared pool has its own.
var backendMaps = [...]rules.SetID{rules.Backends, rules.PortBackends, rules.OutsideBackends, rules.OutsidePortBackends}

// slot is a key in a map.
type slot struct {
	of  string
	key rules.Key
}

// moved is the slots that a Plan changes, and the Services with existing slots among them.
type moved struct {
	services map[ir.Name]bool
	had      map[slot]netip.AddrPort // existing backends; zero for new slots
}

func movedIn(c *change) moved {
	m := moved{map[ir.Name]bool{}, map[slot]netip.AddrPort{}}
	for _, e := range c.sets.elements {
		of := e.set.Name
		id, ok := fixedSet(of)
		if !rules.IsPool(of) && (!ok || !slices.Contains(backendMaps[:], id)) || len(e.removed) == 0 {
			continue
		}
		for i := range e.added {
			m.had[slot{of, e.added[i].Key}] = netip.AddrPort{}
		}
		for i := range e.removed {
			m.had[slot{of, e.removed[i].Key}] = e.removed[i].To
		}
		for i := range e.added {
			if m.had[slot{of, e.added[i].Key}].IsValid() {
				m.services[c.serviceOf(e.set, &e.added[i])] = true
			}
		}
	}
	return m
}

// slots returns the existing backends in the slots of a Service's pools. A pool may be in several
// maps, once per frontend; the first one is used.
func (m moved) slots(lowered rules.Fragment, svc *ir.Service) func(pool int) []netip.AddrPort {
	var sets []rules.Set
	for _, id := range backendMaps {
		s := *id.Set()
		s.Elements = lowered.Elements[id]
		sets = append(sets, s)
	}
	sets = append(sets, slices.DeleteFunc(lowered.Maps, func(s rules.Set) bool { return !rules.IsPool(s.Name) })...)
	return func(pool int) []netip.AddrPort {
		backends := svc.Pools[pool].Backends
		for _, s := range sets {
			elements := s.Elements
			// An element has the origin of its own backend.
			i := slices.IndexFunc(elements, func(e rules.Element) bool { return e.Origin == &backends[0].Origin })
			if i < 0 {
				continue
			}
			slots := make([]netip.AddrPort, len(backends))
			for n := range slots {
				at := slot{s.Name, elements[i].Key}
				at.key.Slot = uint32(n)
				had, changes := m.had[at]
				if !changes {
					had = backends[n].AddrPort
				}
				slots[n] = had
			}
			return slots
		}
		return nil
	}
}

// withSlots returns a copy of the Service with its pools in the order that slots returns, or the
// Service itself.
func withSlots(svc *ir.Service, slots func(pool int) []netip.AddrPort) *ir.Service {
	var out *ir.Service
	for i := range svc.Pools {
		ordered := inSlots(svc.Pools[i].Backends, slots(i))
		if ordered == nil {
			continue
		}
		if out == nil {
			c := *svc
			c.Pools = slices.Clone(svc.Pools)
			out = &c
		}
		out.Pools[i].Backends = ordered
	}
	if out == nil {
		return svc
	}
	return out
}

// inSlots returns backends with those that have a slot at its index, and the others at free ones.
// It returns nil if this is the order already.
func inSlots(backends []ir.Backend, slots []netip.AddrPort) []ir.Backend {
	slots = slots[:min(len(slots), len(backends))]
	same := 0
	for same < len(slots) && backends[same].AddrPort == slots[same] {
		same++
	}
	if same == len(slots) {
		return nil
	}
	at := make(map[netip.AddrPort]int, len(slots))
	for i, a := range slots {
		at[a] = i
	}
	out, used := make([]ir.Backend, len(backends)), make([]bool, len(backends))
	var rest []ir.Backend
	for _, b := range backends {
		if i, ok := at[b.AddrPort]; ok && !used[i] {
			out[i], used[i] = b, true
		} else {
			rest = append(rest, b)
		}
	}
	for i := range out {
		if !used[i] {
			out[i], rest = rest[0], rest[1:]
		}
	}
	return out
}

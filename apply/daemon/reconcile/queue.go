package reconcile

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// queue divides changes into syncs of limited work, so that other Services do not wait for a large
// one, or for many. A Service that has many ports in both versions is divided by port. Syncs with
// new small changes alternate with syncs of the oldest changes. The zero value is empty.
type queue struct {
	waiting []*queued // by arrival
	byName  map[familyName]*queued
	oldNext bool // the next sync contains the oldest changes
}

type familyName struct {
	family ir.Family
	name   ir.Name
}

// queued is a change that waits. Its Old is the version of earlier syncs.
type queued struct {
	family ir.Family
	ir.Change
	work  int
	small bool // within the limit, and new
	moves moves
	ports []port         // of a change above the limit
	after ir.ServicePort // where the next sync continues
}

// port is the change of one port.
type port struct {
	ir.ServicePort
	ir.Change
}

// next adds new changes, and returns the changes of the next sync. limit is their maximum work; 0
// for everything that waits.
func (q *queue) next(changes ir.Changes, limit int) (now ir.Changes) {
	if q.empty() && (limit == 0 || workOf(changes) <= limit) {
		return changes
	}
	for f, of := range changes.All() {
		for _, c := range of {
			q.add(f, c, limit)
		}
	}
	if limit == 0 || q.moving() {
		return q.take(func(e *queued) (ir.Change, bool) { return e.Change, true })
	}
	small := func(e *queued) bool { return e.small }
	newOnly := !q.oldNext && slices.ContainsFunc(q.waiting, small)
	left, first := limit, true
	now = q.take(func(e *queued) (c ir.Change, done bool) {
		switch {
		case newOnly && !e.small, left <= 0:
			return c, false
		case e.work <= left:
			c, done = e.Change, true
			left -= e.work
		case first:
			c, done = e.divide(limit)
			left = 0
		default:
			left = 0 // later changes do not overtake it
		}
		first = false
		return c, done
	})
	if q.oldNext = newOnly; newOnly {
		for _, e := range q.waiting {
			e.small = false
		}
	}
	return now
}

func (q *queue) empty() bool { return len(q.waiting) == 0 }

// has reports whether a part of a Service's last change waits.
func (q *queue) has(name ir.Name) bool {
	return q.byName[familyName{ir.IPv4, name}] != nil || q.byName[familyName{ir.IPv6, name}] != nil
}

// add adds a change, or replaces the version that waits.
func (q *queue) add(f ir.Family, c ir.Change, limit int) {
	e := q.byName[familyName{f, c.Name}]
	if e == nil {
		e = &queued{family: f, Change: c, small: true}
		if q.byName == nil {
			q.byName = map[familyName]*queued{}
		}
		q.byName[familyName{f, c.Name}] = e
		q.waiting = append(q.waiting, e)
	}
	e.New, e.moves, e.ports = c.New, movesOf(e.Old, c.New), nil
	if e.work = work(e.Change); limit > 0 && e.work > limit {
		e.work = 0
		for name, c := range e.ByPort {
			e.ports = append(e.ports, port{name, c})
			if !c.Equivalent() {
				e.work += work(c)
			}
		}
	}
	e.small = e.small && e.work <= limit
}

// take returns what hand returns of each waiting change, and whether that is all of it.
func (q *queue) take(hand func(*queued) (ir.Change, bool)) (now ir.Changes) {
	rest := q.waiting[:0]
	for _, e := range q.waiting {
		c, done := hand(e)
		if c.Old != nil || c.New != nil {
			*now.At(e.family) = append(*now.At(e.family), c)
		}
		if done {
			delete(q.byName, familyName{e.family, e.Name})
		} else {
			rest = append(rest, e)
		}
	}
	clear(q.waiting[len(rest):])
	q.waiting = rest
	for _, of := range now.All() {
		slices.SortFunc(of, func(a, b ir.Change) int { return a.Name.Compare(b.Name) })
	}
	return now
}

// divide returns the change of some ports that differ, within a limit but at least of one, and
// whether these are all. It continues after those of the last call. It does not divide a Service
// that is added, removed or gets other addresses: while only some of its ports existed there, the
// others would be rejected.
func (e *queued) divide(limit int) (ir.Change, bool) {
	if e.Old == nil || e.New == nil || e.moves.ports || len(e.moves.added) > 0 && len(e.moves.removed) > 0 {
		return e.Change, true
	}
	begin, found := slices.BinarySearchFunc(e.ports, e.after, func(p port, n ir.ServicePort) int { return p.Compare(n) })
	if found {
		begin++
	}
	parts := make([]*ir.Service, len(e.ports))
	spent, rest := 0, 0
	for i := range e.ports {
		i = (begin + i) % len(e.ports)
		p := &e.ports[i]
		if !p.Equivalent() {
			w := work(p.Change)
			if rest > 0 || spent > 0 && spent+w > limit {
				parts[i] = p.Old
				rest += w
				continue
			}
			spent, e.after = spent+w, p.ServicePort
		}
		parts[i], p.Old = p.New, p.New
	}
	if rest == 0 {
		return e.Change, true
	}
	now := ir.Change{Name: e.Name, Old: e.Old}
	now.New = ir.Join(e.Old, slices.DeleteFunc(parts, func(s *ir.Service) bool { return s == nil }))
	e.Old, e.work = now.New, rest
	e.moves = movesOf(e.Old, e.New)
	return now, false
}

// affinityWork is the work for a backend with session affinity, compared with another one. Each has
// an element that leads to a chain, and is removed from the maps of clients.
const affinityWork = 5

// sharedFrom is the number of backends from which frontends share a pool, if there are many. Fewer
// backends are counted for each frontend.
const sharedFrom = 4

// work estimates the work for a change, in frontends and backends.
func work(c ir.Change) (n int) {
	for _, s := range [...]*ir.Service{c.Old, c.New} {
		if s == nil {
			continue
		}
		for i := range s.Frontends {
			n++
			last := -1
			for _, r := range s.Frontends[i].Routes {
				if r.Pool == last {
					continue
				}
				last = r.Pool
				n += workOfPool(&s.Pools[last], min(len(s.Pools[last].Backends), sharedFrom))
			}
		}
		for i := range s.Pools {
			n += workOfPool(&s.Pools[i], max(len(s.Pools[i].Backends)-sharedFrom, 0))
		}
	}
	return n
}

// workOfPool returns the work for some backends of a pool.
func workOfPool(p *ir.Pool, backends int) int {
	if p.Affinity != nil {
		backends *= affinityWork
	}
	return backends
}

func workOf(changes ir.Changes) (n int) {
	for _, of := range changes.All() {
		for _, c := range of {
			n += work(c)
		}
	}
	return n
}

// moves are the frontends that a change adds and removes. Health check ports count as frontends.
type moves struct {
	added, removed []ir.Match
	ports          bool // a frontend belongs to another port
}

func movesOf(old, now *ir.Service) (m moves) {
	if old != nil && now != nil && old.Health == nil && now.Health == nil &&
		slices.EqualFunc(old.Frontends, now.Frontends, func(a, b ir.Frontend) bool { return a.Match == b.Match && a.Port == b.Port }) {
		return m // nearly always
	}
	was, is := matchesOf(old), matchesOf(now)
	for match, port := range was {
		switch other, ok := is[match]; {
		case !ok:
			m.removed = append(m.removed, match)
		case other != port:
			m.ports = true
		}
	}
	for match := range is {
		if _, ok := was[match]; !ok {
			m.added = append(m.added, match)
		}
	}
	return m
}

func matchesOf(s *ir.Service) map[ir.Match]ir.ServicePort {
	if s == nil {
		return nil
	}
	all := make(map[ir.Match]ir.ServicePort, len(s.Frontends))
	for i := range s.Frontends {
		all[s.Frontends[i].Match] = s.Frontends[i].Port
	}
	if s.Health != nil {
		all[ir.Match{Protocol: ir.TCP, Port: s.Health.Port}] = ir.ServicePort{}
	}
	return all
}

// moving reports whether a frontend moves from one waiting Service to another. Both then change in
// one sync.
func (q *queue) moving() bool {
	var removed map[ir.Match]bool
	for _, e := range q.waiting {
		for _, m := range e.moves.removed {
			if removed == nil {
				removed = map[ir.Match]bool{}
			}
			removed[m] = true
		}
	}
	return removed != nil && slices.ContainsFunc(q.waiting, func(e *queued) bool {
		return slices.ContainsFunc(e.moves.added, func(m ir.Match) bool { return removed[m] })
	})
}

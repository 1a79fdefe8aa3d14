package ir

import "slices"

// ByPort yields the change of each port, in order. Its Old and New contain only what belongs to the
// port, and neither Health nor HNS. Unchanged ports are included. The change of a Service with one
// port is yielded as it is.
func (c Change) ByPort(yield func(ServicePort, Change) bool) {
	if port, ok := c.onlyPort(); ok {
		yield(port, c)
		return
	}
	old, now := portsOf(c.Old), portsOf(c.New)
	for len(old)+len(now) > 0 {
		part, order := Change{Name: c.Name}, len(now)-len(old) // if one of them is empty
		if len(old) > 0 && len(now) > 0 {
			order = old[0].port.Compare(now[0].port)
		}
		var port ServicePort
		if order <= 0 {
			port, part.Old, old = old[0].port, &old[0].Service, old[1:]
		}
		if order >= 0 {
			port, part.New, now = now[0].port, &now[0].Service, now[1:]
		}
		if !yield(port, part) {
			return
		}
	}
}

// onlyPort returns the port of a change in which no other port exists.
func (c *Change) onlyPort() (port ServicePort, ok bool) {
	for _, s := range [...]*Service{c.Old, c.New} {
		if s == nil {
			continue
		}
		is := func(p ServicePort) bool {
			if !ok {
				port, ok = p, true
			}
			return p == port
		}
		for i := range s.Frontends {
			if !is(s.Frontends[i].Port) {
				return port, false
			}
		}
		for i := range s.Pools {
			if !is(s.Pools[i].Port) {
				return port, false
			}
		}
		for i := range s.Draining {
			if !is(s.Draining[i].Port) {
				return port, false
			}
		}
	}
	return port, ok
}

// servicePort is the part of a Service that belongs to one port.
type servicePort struct {
	port ServicePort
	Service
}

// portsOf returns the parts of a Service in order of port.
func portsOf(s *Service) (all []servicePort) {
	if s == nil {
		return nil
	}
	order := make([]*Frontend, len(s.Frontends))
	routes := 0
	for i := range s.Frontends {
		order[i] = &s.Frontends[i]
		routes += len(s.Frontends[i].Routes)
	}
	slices.SortStableFunc(order, func(a, b *Frontend) int { return a.Port.Compare(b.Port) })
	frontends, rebased := make([]Frontend, 0, len(order)), make([]Route, 0, routes)
	all = make([]servicePort, 0, len(s.Pools))
	pool, draining := 0, 0
	var next []ServicePort
	for len(order) > 0 || pool < len(s.Pools) || draining < len(s.Draining) {
		part := servicePort{Service: Service{Name: s.Name, Origin: s.Origin}}
		next = next[:0]
		if len(order) > 0 {
			next = append(next, order[0].Port)
		}
		if pool < len(s.Pools) {
			next = append(next, s.Pools[pool].Port)
		}
		if draining < len(s.Draining) {
			next = append(next, s.Draining[draining].Port)
		}
		part.port = slices.MinFunc(next, ServicePort.Compare)
		from, start := pool, len(frontends)
		for pool < len(s.Pools) && s.Pools[pool].Port == part.port {
			pool++
		}
		for len(order) > 0 && order[0].Port == part.port {
			frontends, rebased = appendMoved(frontends, rebased, order[0], -from)
			order = order[1:]
		}
		drains := draining
		for draining < len(s.Draining) && s.Draining[draining].Port == part.port {
			draining++
		}
		part.Frontends, part.Pools, part.Draining = slices.Clip(frontends[start:]), s.Pools[from:pool:pool], s.Draining[drains:draining:draining]
		all = append(all, part)
	}
	return all
}

// appendMoved appends a copy of a frontend, with the indexes of its pools moved.
func appendMoved(to []Frontend, routes []Route, f *Frontend, by int) ([]Frontend, []Route) {
	to = append(to, *f)
	if by == 0 || len(f.Routes) == 0 {
		return to, routes
	}
	start := len(routes)
	routes = append(routes, f.Routes...)
	moved := slices.Clip(routes[start:])
	for i := range moved {
		moved[i].Pool += by
	}
	to[len(to)-1].Routes = moved
	return to, routes
}

// Equivalent reports whether both versions differ at most in their Origins.
func (c Change) Equivalent() bool {
	a, b := c.Old, c.New
	if a == nil || b == nil || a == b {
		return a == b
	}
	return slices.EqualFunc(a.Frontends, b.Frontends, equivalentFrontends) &&
		slices.EqualFunc(a.Pools, b.Pools, func(a, b Pool) bool {
			return a.Port == b.Port && a.Policy == b.Policy && equivalentBackends(a.Backends, b.Backends) &&
				equivalent(a.Affinity, b.Affinity, func(a, b *Affinity) bool { return a.Timeout == b.Timeout })
		}) &&
		slices.EqualFunc(a.Draining, b.Draining, func(a, b Draining) bool { return a.Port == b.Port && equivalentBackends(a.Backends, b.Backends) }) &&
		equivalent(a.Health, b.Health, func(a, b *HealthCheck) bool { return a.Port == b.Port && a.Local == b.Local }) &&
		equivalent(a.HNS, b.HNS, func(a, b *HNSService) bool { return *a == *b })
}

func equivalentFrontends(a, b Frontend) bool {
	return a.Kind == b.Kind && a.Match == b.Match && a.Port == b.Port && a.Policy == b.Policy && a.Fallback == b.Fallback &&
		slices.EqualFunc(a.SourceRanges, b.SourceRanges, func(a, b SourceRange) bool { return a.Prefix == b.Prefix }) &&
		slices.EqualFunc(a.Routes, b.Routes, func(a, b Route) bool { return a.From == b.From && a.Pool == b.Pool && a.SNAT == b.SNAT }) &&
		equivalent(a.Maglev, b.Maglev, func(a, b *Maglev) bool { return a.Slots == b.Slots })
}

func equivalentBackends(a, b []Backend) bool {
	if len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] {
		return true
	}
	return slices.EqualFunc(a, b, func(a, b Backend) bool { return a.AddrPort == b.AddrPort && a.Local == b.Local })
}

// equivalent compares what pointers refer to.
func equivalent[T any](a, b *T, same func(a, b *T) bool) bool {
	return a == b || a != nil && b != nil && same(a, b)
}

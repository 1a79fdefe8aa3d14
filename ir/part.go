package ir

import "slices"

// Part returns a copy of a Service with only the selected frontends and backends. It removes pools that
// become empty with their routes, and pools and draining backends without a frontend. A nil function
// selects everything.
func (s *Service) Part(frontend func(*Frontend) bool, backend func(Protocol, *Backend) bool) *Service {
	part := *s
	part.Frontends, part.Pools, part.Draining = nil, nil, nil
	used, served := map[int]bool{}, map[ServicePort]bool{}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if frontend != nil && !frontend(f) {
			continue
		}
		part.Frontends = append(part.Frontends, *f)
		served[f.Port] = true
		for _, r := range f.Routes {
			used[r.Pool] = true
		}
	}
	some := func(p ServicePort, all []Backend) []Backend {
		if backend == nil {
			return all
		}
		return slices.DeleteFunc(slices.Clone(all), func(b Backend) bool { return !backend(p.Protocol, &b) })
	}
	index := map[int]int{} // new index of a pool by its old one
	for i, p := range s.Pools {
		if p.Backends = some(p.Port, p.Backends); used[i] && len(p.Backends) > 0 {
			index[i] = len(part.Pools)
			part.Pools = append(part.Pools, p)
		}
	}
	for _, d := range s.Draining {
		if d.Backends = some(d.Port, d.Backends); served[d.Port] && len(d.Backends) > 0 {
			part.Draining = append(part.Draining, d)
		}
	}
	for i := range part.Frontends {
		f := &part.Frontends[i]
		var routes []Route
		for _, r := range f.Routes {
			if n, ok := index[r.Pool]; ok {
				r.Pool = n
				routes = append(routes, r)
			}
		}
		f.Routes = routes
	}
	return &part
}

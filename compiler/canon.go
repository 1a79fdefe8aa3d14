package compiler

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// canonical sorts the frontends of a Service. Its pools are created in canonical
// order.
func canonical(s *ir.Service) {
	slices.SortFunc(s.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) })
}

// without returns a copy of a Service without the lost frontends, the pools that
// only they used, and the draining backends of ports without frontends.
func without(s *ir.Service, lost func(*ir.Frontend) bool) *ir.Service {
	out := *s
	out.Frontends, out.Pools, out.Draining = nil, nil, nil
	index := map[int]int{} // new index of a pool by its old one
	served := map[ir.ServicePort]bool{}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if lost(f) {
			continue
		}
		out.Frontends = append(out.Frontends, *f)
		served[f.Port] = true
		for _, r := range f.Routes {
			index[r.Pool] = 0
		}
	}
	for i, p := range s.Pools {
		if _, used := index[i]; used {
			index[i] = len(out.Pools)
			out.Pools = append(out.Pools, p)
		}
	}
	for _, k := range s.Draining {
		if served[k.Port] {
			out.Draining = append(out.Draining, k)
		}
	}
	for i := range out.Frontends {
		routes := slices.Clone(out.Frontends[i].Routes)
		for j := range routes {
			routes[j].Pool = index[routes[j].Pool]
		}
		out.Frontends[i].Routes = routes
	}
	return &out
}

package compiler

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// shared maps each endpoint of one family to the Services that use it, sorted by
// name. It is nil if shared endpoints are harmless: the mode distinguishes their
// connections, or all clients are masqueraded, each connection from its own port.
//
// A Service's finding names only the next Service, and the last one's names the
// first. A change of one Service therefore changes the finding of one other
// Service for each endpoint, regardless of how many share it.
type shared map[endpointKey][]*entry

type endpointKey struct {
	to       netip.AddrPort
	protocol ir.Protocol
}

func (c *Compiler) newShared(f ir.Family) shared {
	if !c.cluster.caps.Has(ir.ConfusesShared) || c.targets.Of(f).node.MasqueradeAll {
		return nil
	}
	return shared{}
}

// endpointsIn returns the endpoints of a Service without duplicates. svc may be
// nil.
func endpointsIn(svc *ir.Service) []endpointKey {
	if svc == nil {
		return nil
	}
	var list []endpointKey
	seen := map[endpointKey]bool{}
	for i := range svc.Pools {
		p := &svc.Pools[i]
		for _, b := range p.Backends {
			if k := (endpointKey{b.AddrPort, p.Port.Protocol}); !seen[k] {
				seen[k] = true
				list = append(list, k)
			}
		}
	}
	return list
}

// replace updates the endpoints of e from one version of its Service to the next.
// It calls touched for each other Service whose finding may change.
func (s shared) replace(e *entry, old, next *ir.Service, touched func(*entry)) {
	if s == nil {
		return
	}
	had, has := endpointsIn(old), endpointsIn(next)
	if slices.Equal(had, has) {
		return
	}
	keep := sets.New(has...)
	for _, k := range had {
		if keep.Has(k) {
			delete(keep, k)
		} else {
			s.remove(e, k, touched)
		}
	}
	for _, k := range has {
		if keep.Has(k) {
			s.add(e, k, touched)
		}
	}
}

func (s shared) add(e *entry, k endpointKey, touched func(*entry)) {
	at, _ := s.find(e, k)
	s[k] = slices.Insert(s[k], at, e)
	s.touch(k, at-1, e, touched)
}

func (s shared) remove(e *entry, k endpointKey, touched func(*entry)) {
	at, _ := s.find(e, k)
	if s[k] = slices.Delete(s[k], at, at+1); len(s[k]) == 0 {
		delete(s, k)
		return
	}
	s.touch(k, at-1, e, touched)
}

// touch calls touched with the Service at an index, unless it is e. Index -1 is
// the last Service.
func (s shared) touch(k endpointKey, at int, e *entry, touched func(*entry)) {
	n := len(s[k])
	if o := s[k][(at+n)%n]; o != e {
		touched(o)
	}
}

func (s shared) find(e *entry, k endpointKey) (int, bool) {
	return slices.BinarySearchFunc(s[k], e, func(a, b *entry) int { return a.name.Compare(b.name) })
}

// finding reports that a Service shares endpoints: the first shared endpoint with
// one other Service, and the number of shared endpoints.
func (s shared) finding(e *entry, svc *ir.Service) diag.List {
	if len(s) == 0 || svc == nil {
		return nil
	}
	n := 0
	var first endpointKey
	var with *entry
	for _, k := range endpointsIn(svc) {
		all := s[k]
		if len(all) < 2 {
			continue
		}
		if n++; n == 1 {
			at, _ := s.find(e, k)
			first, with = k, all[(at+1)%len(all)]
		}
	}
	if n == 0 {
		return nil
	}
	what := fmt.Sprintf("shares endpoint %s/%s with Service %s", first.to, first.protocol, with.name)
	if n > 1 {
		what = fmt.Sprintf("shares %d endpoints with other Services, such as %s/%s with Service %s", n, first.to, first.protocol, with.name)
	}
	object := "Service " + e.name.String()
	if len(svc.Frontends) > 0 {
		object = svc.Frontends[0].Origin.Object
	}
	return diag.List{{Severity: diag.Warning, Code: diag.EndpointShared, Object: object, Path: "spec.selector",
		Msg: what + ": in mode ipvs the kernel does not distinguish connections from one client port to both, and one of them fails (kubernetes#107249)"}}
}

package compiler

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// shared are the Services that lead to an endpoint, in one family, by name. It is
// nil where the mode tells their connections apart, or every client is
// masqueraded, with a port of its own for each connection.
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

// endpoints calls f for each endpoint of a Service, once.
func (s shared) endpoints(svc *ir.Service, f func(endpointKey)) {
	if s == nil || svc == nil {
		return
	}
	seen := map[endpointKey]bool{}
	for i := range svc.Pools {
		p := &svc.Pools[i]
		for _, b := range p.Backends {
			if k := (endpointKey{b.AddrPort, p.Port.Protocol}); !seen[k] {
				seen[k] = true
				f(k)
			}
		}
	}
}

// add notes the endpoints of a Service; touched is called with those that share
// one.
func (s shared) add(e *entry, svc *ir.Service, touched func(*entry)) {
	s.endpoints(svc, func(k endpointKey) {
		for _, o := range s[k] {
			touched(o)
		}
		at, _ := slices.BinarySearchFunc(s[k], e, func(a, b *entry) int { return a.name.Compare(b.name) })
		s[k] = slices.Insert(s[k], at, e)
	})
}

// remove takes back what add noted.
func (s shared) remove(e *entry, svc *ir.Service, touched func(*entry)) {
	s.endpoints(svc, func(k endpointKey) {
		s[k] = slices.DeleteFunc(s[k], func(o *entry) bool { return o == e })
		for _, o := range s[k] {
			touched(o)
		}
		if len(s[k]) == 0 {
			delete(s, k)
		}
	})
}

// confused returns with which Services a Service shares endpoints: each is named
// once, by the one that comes first by name.
func (s shared) confused(e *entry, svc *ir.Service) (diags diag.List) {
	type with struct {
		first endpointKey
		n     int
	}
	others := map[*entry]with{}
	s.endpoints(svc, func(k endpointKey) {
		for _, o := range s[k] {
			if o.name.Compare(e.name) > 0 {
				w := others[o]
				if w.n++; w.n == 1 {
					w.first = k
				}
				others[o] = w
			}
		}
	})
	object := "Service " + e.name.String()
	if svc != nil && len(svc.Frontends) > 0 {
		object = svc.Frontends[0].Origin.Object
	}
	for o, w := range others {
		more := ""
		if w.n > 1 {
			more = fmt.Sprintf(" and %d more", w.n-1)
		}
		diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.EndpointShared, Object: object, Path: "spec.selector",
			Msg: fmt.Sprintf("has endpoint %s/%s%s, as Service %s has: in mode ipvs the kernel does not tell apart connections from one port of a client to both, and one of them fails (kubernetes#107249)",
				w.first.to, w.first.protocol, more, o.name)})
	}
	return diags
}

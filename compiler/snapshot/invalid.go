package snapshot

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Invalid is an object that a file contains and the Snapshot does not, because
// the API server would reject it. Commands that look it up report that reason
// instead of a missing object.
type Invalid struct {
	Object  string  // "Service ns/web", as in findings
	Service ir.Name // the Service itself, or the Service of its endpoints; zero for other kinds
	// Addrs and NodePorts are those that could be decoded from a Service.
	Addrs     []netip.Addr
	NodePorts []int32
	Why       string // the findings that caused it, each with its position
}

// IsService reports whether the object is a Service.
func (l *Invalid) IsService() bool { return strings.HasPrefix(l.Object, "Service ") }

// Invalid describes the Service as an invalid object.
func (s *Service) Invalid() Invalid {
	out := Invalid{Object: s.Object, Service: s.Name, Addrs: s.Addrs()}
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			out.NodePorts = append(out.NodePorts, p.NodePort)
		}
	}
	return out
}

// Addrs returns the addresses to which clients connect. It omits invalid ones.
func (s *Service) Addrs() (addrs []netip.Addr) {
	all := slices.Concat([]string{s.ClusterIP}, s.ClusterIPs, s.ExternalIPs)
	for _, in := range s.LoadBalancer {
		all = append(all, in.IP)
	}
	for _, text := range all {
		if a := address(text).Unmap(); a.IsValid() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// SetInvalid records that an object was invalid because of a finding.
func (s *Snapshot) SetInvalid(o Invalid, why diag.Diagnostic) {
	l := s.invalid[o.Object]
	if l == nil {
		l = &o
		s.invalid[o.Object] = l
	}
	why.Object = ""
	l.Why = strings.TrimPrefix(l.Why+"; "+why.String(), "; ")
}

// ClearInvalid removes the record of an invalid object: one of its name was added.
func (s *Snapshot) ClearInvalid(object string) { delete(s.invalid, object) }

// Keep adds the last good versions of the objects that are invalid in s, from an older Snapshot. Those with faults
// are invalid, too, unless old contains no good version: it is missing, or in used. It returns the latter objects.
func (s *Snapshot) Keep(old *Snapshot, faults diag.List, used map[string]bool) map[string]bool {
	without := map[string]bool{}
	for _, d := range faults {
		if used[d.Object] || !s.keep(old, d.Object) {
			without[d.Object] = true
		} else {
			s.SetInvalid(Invalid{Object: d.Object}, d)
		}
	}
	for object, l := range s.invalid {
		if s.keep(old, object) {
			l.Why += ": the last good version stays in force"
		}
	}
	return without
}

// keep sets an object to its version in old, and reports whether there is one.
func (s *Snapshot) keep(old *Snapshot, object string) bool {
	kind, key := ParseObject(object)
	switch kind {
	case "Service":
		return keep(s.services, old.services, key)
	case "EndpointSlice":
		slice := old.slices[key]
		if slice != nil {
			s.SetSlice(slice)
		}
		return slice != nil
	case "Endpoints":
		return keep(s.legacy, old.legacy, key)
	case "Node":
		return keep(s.nodes, old.nodes, key.Name)
	}
	return kind == "ServiceCIDR" && keep(s.cidrs, old.cidrs, key.Name)
}

func keep[K comparable, V any](in, from map[K]V, key K) bool {
	v, ok := from[key]
	if ok {
		in[key] = v
	}
	return ok
}

// Invalid returns the invalid objects, sorted by name.
func (s *Snapshot) Invalid() []*Invalid {
	return slices.SortedFunc(maps.Values(s.invalid), func(a, b *Invalid) int { return strings.Compare(a.Object, b.Object) })
}

// InvalidService returns the invalid Service of a name, or nil.
func (s *Snapshot) InvalidService(name ir.Name) *Invalid {
	return s.invalid[ObjectName("Service", name)]
}

// InvalidNode returns the invalid Node of a name, or nil.
func (s *Snapshot) InvalidNode(name string) *Invalid {
	return s.invalid[ObjectName("Node", ir.Name{Name: name})]
}

// Finish reports findings that require all files.
func (s *Snapshot) Finish() (list diag.List) {
	for _, svc := range s.Services() {
		if owned := s.Slices(svc.Name); len(owned) > 0 && owned[0].FromEndpoints {
			list.Add(diag.Diagnostic{
				Severity: diag.Info, Code: diag.FromEndpoints, Object: svc.Object,
				Msg:  "no EndpointSlice serves it: its v1 Endpoints are used instead",
				Hint: "Endpoints contain neither terminating endpoints nor zone hints; add EndpointSlices if the cluster has them",
			})
		}
	}
	return list
}

package snapshot

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Skipped is an object that a file contains and the Snapshot does not, because
// the API server would reject it. Commands that look it up report that reason
// instead of a missing object.
type Skipped struct {
	Object  string  // "Service ns/web", as in findings
	Service ir.Name // the Service itself, or the Service of its endpoints; zero for other kinds
	// Addrs and NodePorts are those that could be decoded from a Service.
	Addrs     []netip.Addr
	NodePorts []int32
	Why       string // the findings that caused it, each with its position
}

// IsService reports whether the object is a Service.
func (l *Skipped) IsService() bool { return strings.HasPrefix(l.Object, "Service ") }

// Skipped describes the Service as a skipped object.
func (s *Service) Skipped() Skipped {
	out := Skipped{Object: s.Object, Service: s.Name, Addrs: s.Addrs()}
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

// Skip records that an object was skipped because of a finding.
func (s *Snapshot) Skip(o Skipped, why diag.Diagnostic) {
	l := s.skipped[o.Object]
	if l == nil {
		l = &o
		s.skipped[o.Object] = l
	}
	why.Object = ""
	l.Why = strings.TrimPrefix(l.Why+"; "+why.String(), "; ")
}

// Unskip removes the record of a skipped object: one of its name was added.
func (s *Snapshot) Unskip(object string) { delete(s.skipped, object) }

// Keep adds the last good versions of the objects that s skips, from an older Snapshot.
func (s *Snapshot) Keep(old *Snapshot) {
	for object := range s.skipped {
		switch kind, key := ParseObject(object); kind {
		case "Service":
			keep(s.services, old.services, key)
		case "EndpointSlice":
			if slice := old.slices[key]; slice != nil {
				s.SetSlice(slice)
			}
		case "Endpoints":
			keep(s.legacy, old.legacy, key)
		case "Node":
			keep(s.nodes, old.nodes, key.Name)
		case "ServiceCIDR":
			keep(s.cidrs, old.cidrs, key.Name)
		}
	}
}

func keep[K comparable, V any](in, from map[K]V, key K) {
	if v, ok := from[key]; ok {
		in[key] = v
	}
}

// Skipped returns the skipped objects, sorted by name.
func (s *Snapshot) Skipped() []*Skipped {
	return slices.SortedFunc(maps.Values(s.skipped), func(a, b *Skipped) int { return strings.Compare(a.Object, b.Object) })
}

// SkippedService returns the skipped Service of a name, or nil.
func (s *Snapshot) SkippedService(name ir.Name) *Skipped {
	return s.skipped[ObjectName("Service", name)]
}

// SkippedNode returns the skipped Node of a name, or nil.
func (s *Snapshot) SkippedNode(name string) *Skipped {
	return s.skipped[ObjectName("Node", ir.Name{Name: name})]
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

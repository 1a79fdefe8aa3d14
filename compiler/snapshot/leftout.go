package snapshot

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// LeftOut is an object that a file has and the Snapshot has not, since the API server
// would refuse it: whoever asks for it is to hear that, and not that it does not exist.
type LeftOut struct {
	Object  string  // "Service ns/web", as findings name it
	Service ir.Name // which it is, or whose endpoints it has; zero for other kinds
	// Addrs and NodePorts are those that could be read of a Service.
	Addrs     []netip.Addr
	NodePorts []int32
	Why       string // the findings for which it is left out, each with its place
}

// IsService reports whether it is a Service.
func (l *LeftOut) IsService() bool { return strings.HasPrefix(l.Object, "Service ") }

// Addrs returns the addresses that clients connect to, without those that are none.
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

// leftOut is what is known of a Service that is left out.
func (s *Service) leftOut() LeftOut {
	out := LeftOut{Service: s.Name, Addrs: s.Addrs()}
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			out.NodePorts = append(out.NodePorts, p.NodePort)
		}
	}
	return out
}

// leaveOut notes that an object is not in s, and one finding for which it is not.
func (s *Snapshot) leaveOut(o *object, why diag.Diagnostic) {
	if o.name == "" || o.has != nil && o.has(s) {
		return // another one of its name is there
	}
	l := s.leftOut[o.name]
	if l == nil {
		l = new(LeftOut)
		if o.left != nil {
			*l = o.left()
		}
		l.Object = o.name
		s.leftOut[o.name] = l
	}
	why.Object = ""
	l.Why = strings.TrimPrefix(l.Why+"; "+why.String(), "; ")
}

// LeftOut returns the objects that files have and s has not, by their names.
func (s *Snapshot) LeftOut() []*LeftOut {
	return slices.SortedFunc(maps.Values(s.leftOut), func(a, b *LeftOut) int { return strings.Compare(a.Object, b.Object) })
}

// ServiceLeftOut returns the Service of a name that is left out, or nil.
func (s *Snapshot) ServiceLeftOut(name ir.Name) *LeftOut {
	return s.leftOut[objectName("Service", name)]
}

// NodeLeftOut returns the Node of a name that is left out, or nil.
func (s *Snapshot) NodeLeftOut(name string) *LeftOut {
	return s.leftOut[objectName("Node", ir.Name{Name: name})]
}

package snapshot

import (
	"maps"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Backend is a reference to a port of a Service by an Ingress, or by a route of the Gateway API.
type Backend struct {
	Object  string // "Ingress shop/web"
	Path    string // of the port
	Service ir.Name
	Port    int32  // 0 if it is named
	Name    string // of the port; "" if it has a number
}

// Backends returns the references to Services, sorted by object.
func (s *Snapshot) Backends() (out []Backend) {
	for _, object := range slices.Sorted(maps.Keys(s.backends)) {
		out = append(out, s.backends[object]...)
	}
	return out
}

// HasPort reports whether the Service has the port of a Backend.
func (s *Service) HasPort(b *Backend) bool {
	return slices.ContainsFunc(s.Ports, func(p ServicePort) bool {
		return b.Port != 0 && p.Port == b.Port || b.Name != "" && p.Name == b.Name
	})
}

// SetBackends adds or replaces the references of an object.
func (s *Snapshot) SetBackends(object string, all []Backend) { s.backends[object] = all }

// HasBackends reports whether the references of an object are there.
func (s *Snapshot) HasBackends(object string) bool { _, ok := s.backends[object]; return ok }

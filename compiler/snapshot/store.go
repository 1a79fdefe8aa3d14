package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Snapshot is the state of a cluster, keyed by object and indexed by Service. Its
// objects are immutable; a new version replaces the old one. It is not safe for
// concurrent use with changes.
type Snapshot struct {
	services map[ir.Name]*Service
	slices   map[ir.Name]*EndpointSlice
	byOwner  map[ir.Name][]*EndpointSlice // slices of a Service, by name
	legacy   map[ir.Name][]*EndpointSlice // made from v1 Endpoints, by their name
	nodes    map[string]*Node
	cidrs    map[string]*ServiceCIDR
	invalid  map[string]*Invalid // invalid objects of files, by Object
	// workloads are those of files, by Object. Only commands that assume endpoints use them.
	workloads map[string]*Workload
	backends  map[string][]Backend // of files, by Object
	customs   map[string]*Workload // other objects of files that may make pods, by Object

	uncompared map[string]Uncompared
}

// New returns an empty Snapshot.
func New() *Snapshot {
	return &Snapshot{
		services:  map[ir.Name]*Service{},
		slices:    map[ir.Name]*EndpointSlice{},
		byOwner:   map[ir.Name][]*EndpointSlice{},
		legacy:    map[ir.Name][]*EndpointSlice{},
		nodes:     map[string]*Node{},
		cidrs:     map[string]*ServiceCIDR{},
		invalid:   map[string]*Invalid{},
		workloads: map[string]*Workload{},
		backends:  map[string][]Backend{},
		customs:   map[string]*Workload{},

		uncompared: map[string]Uncompared{},
	}
}

// SetService adds or replaces a Service.
func (s *Snapshot) SetService(svc *Service) { s.services[svc.Name] = svc }

// DeleteService removes a Service. Its slices remain and wait for a new Service
// (SNAP-6).
func (s *Snapshot) DeleteService(name ir.Name) { delete(s.services, name) }

// Service returns a Service by name, or nil.
func (s *Snapshot) Service(name ir.Name) *Service { return s.services[name] }

// Services returns all Services sorted by name.
func (s *Snapshot) Services() []*Service {
	return slices.SortedFunc(maps.Values(s.services), func(a, b *Service) int { return a.Name.Compare(b.Name) })
}

// SetSlice adds or replaces an EndpointSlice. It returns the Services whose
// endpoints may have changed: one, or two if the slice changed its Service.
func (s *Snapshot) SetSlice(slice *EndpointSlice) []ir.Name {
	dirty := s.DeleteSlice(slice.Name)
	s.slices[slice.Name] = slice
	if slice.Service.Name == "" {
		return dirty
	}
	owned := s.byOwner[slice.Service]
	i, _ := slices.BinarySearchFunc(owned, slice, compareSlices)
	// A new array: Slices may have returned the old one.
	s.byOwner[slice.Service] = slices.Concat(owned[:i], []*EndpointSlice{slice}, owned[i:])
	if !slices.Contains(dirty, slice.Service) {
		dirty = append(dirty, slice.Service)
	}
	return dirty
}

// DeleteSlice removes an EndpointSlice and returns its Service, if any.
func (s *Snapshot) DeleteSlice(name ir.Name) []ir.Name {
	old := s.slices[name]
	if old == nil {
		return nil
	}
	delete(s.slices, name)
	if old.Service.Name == "" {
		return nil
	}
	owned := s.byOwner[old.Service]
	i, _ := slices.BinarySearchFunc(owned, old, compareSlices)
	if len(owned) == 1 {
		delete(s.byOwner, old.Service)
	} else {
		s.byOwner[old.Service] = slices.Concat(owned[:i], owned[i+1:])
	}
	return []ir.Name{old.Service}
}

func compareSlices(a, b *EndpointSlice) int { return cmp.Compare(a.Name.Name, b.Name.Name) }

// SetEndpoints adds or replaces the slices that FromEndpoints made from the v1
// Endpoints of a name.
func (s *Snapshot) SetEndpoints(name ir.Name, slices []*EndpointSlice) { s.legacy[name] = slices }

// DeleteEndpoints removes the slices made from the v1 Endpoints of a name.
func (s *Snapshot) DeleteEndpoints(name ir.Name) { delete(s.legacy, name) }

// HasEndpoints reports whether there are v1 Endpoints of a name.
func (s *Snapshot) HasEndpoints(name ir.Name) bool {
	_, ok := s.legacy[name]
	return ok
}

// Slices returns the EndpointSlices of a Service sorted by name, even if the
// Service does not exist. If there are none, it returns those made from v1
// Endpoints (SNAP-62). The caller must not change the result.
func (s *Snapshot) Slices(service ir.Name) []*EndpointSlice {
	if owned := s.byOwner[service]; owned != nil {
		return owned
	}
	return s.legacy[service]
}

// SetNode adds or replaces a Node.
func (s *Snapshot) SetNode(n *Node) { s.nodes[n.Name] = n }

// Node returns a Node by name, or nil.
func (s *Snapshot) Node(name string) *Node { return s.nodes[name] }

// Nodes returns all Nodes sorted by name.
func (s *Snapshot) Nodes() []*Node {
	return slices.SortedFunc(maps.Values(s.nodes), func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
}

// SetServiceCIDR adds or replaces a ServiceCIDR.
func (s *Snapshot) SetServiceCIDR(c *ServiceCIDR) { s.cidrs[c.Name] = c }

// DeleteServiceCIDR removes a ServiceCIDR.
func (s *Snapshot) DeleteServiceCIDR(name string) { delete(s.cidrs, name) }

// ServiceCIDR returns a ServiceCIDR by name, or nil.
func (s *Snapshot) ServiceCIDR(name string) *ServiceCIDR { return s.cidrs[name] }

// ServiceCIDRs returns all ServiceCIDRs sorted by name.
func (s *Snapshot) ServiceCIDRs() []*ServiceCIDR {
	return slices.SortedFunc(maps.Values(s.cidrs), func(a, b *ServiceCIDR) int { return strings.Compare(a.Name, b.Name) })
}

// Unlabelled returns the EndpointSlices without a Service label, sorted by name.
func (s *Snapshot) Unlabelled() []*EndpointSlice {
	all := slices.SortedFunc(maps.Values(s.slices), func(a, b *EndpointSlice) int { return a.Name.Compare(b.Name) })
	return slices.DeleteFunc(all, func(slice *EndpointSlice) bool { return slice.Service.Name != "" })
}

// Orphans returns the EndpointSlices of Services that do not exist, sorted by
// name. It excludes slices made from v1 Endpoints, which also have other uses.
func (s *Snapshot) Orphans() (out []*EndpointSlice) {
	for service, owned := range s.byOwner {
		if s.services[service] == nil {
			out = append(out, owned...)
		}
	}
	slices.SortFunc(out, func(a, b *EndpointSlice) int { return a.Name.Compare(b.Name) })
	return out
}

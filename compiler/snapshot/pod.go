package snapshot

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Pod returns the address of a pod in a family, and its node. It looks for the
// pod in EndpointSlices, in v1 Endpoints, then in Pods. If several addresses match, it
// returns the lowest.
func (s *Snapshot) Pod(name ir.Name, family ir.Family) (addr netip.Addr, node string, ok bool) {
	if name.Name == "" {
		return addr, "", false
	}
	legacy := false
	for slice := range s.all {
		if slice.FromEndpoints && !legacy {
			if legacy = true; ok {
				break
			}
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if slice.Name.Namespace == name.Namespace && e.Pod == name.Name && family.Has(e.Addr) && (!ok || e.Addr.Less(addr)) {
				addr, node, ok = e.Addr, e.NodeName, true
			}
		}
	}
	if !ok {
		return s.running(name, family)
	}
	return addr, node, ok
}

// running returns the same of a Pod that runs.
func (s *Snapshot) running(name ir.Name, family ir.Family) (addr netip.Addr, node string, ok bool) {
	if w := s.Workload("Pod " + name.String()); w != nil {
		for _, text := range w.IPs {
			if addr, _ = netip.ParseAddr(text); family.Has(addr) {
				return addr, w.NodeName, true
			}
		}
	}
	return netip.Addr{}, "", false
}

// Pods returns the pods with an address of a family as NAMESPACE/NAME, sorted.
func (s *Snapshot) Pods(family ir.Family) []string {
	names := map[string]bool{}
	for slice := range s.all {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Pod != "" && family.Has(e.Addr) {
				names[slice.Name.Namespace+"/"+e.Pod] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// all yields the EndpointSlices, and then the v1 Endpoints.
func (s *Snapshot) all(yield func(*EndpointSlice) bool) {
	for _, slice := range s.slices {
		if !yield(slice) {
			return
		}
	}
	for _, owned := range s.legacy {
		for _, slice := range owned {
			if !yield(slice) {
				return
			}
		}
	}
}

// EndpointNode reports whether an address belongs to an endpoint, and returns the
// endpoint's node, or "" if unknown.
func (s *Snapshot) EndpointNode(addr netip.Addr) (node string, ok bool) {
	for slice := range s.all {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Addr == addr {
				ok = true
				if e.NodeName != "" && (node == "" || e.NodeName < node) {
					node = e.NodeName
				}
			}
		}
	}
	return node, ok
}

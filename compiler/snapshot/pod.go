package snapshot

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Pod returns the address of a pod in a family, and the node it runs on, as far
// as an EndpointSlice has it as an endpoint, or v1 Endpoints if none has. Of
// several addresses it returns the least.
func (s *Snapshot) Pod(name ir.Name, family ir.Family) (addr netip.Addr, node string, ok bool) {
	if name.Name == "" {
		return addr, "", false
	}
	look := func(slice *EndpointSlice) {
		if slice.Name.Namespace != name.Namespace {
			return
		}
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			if ep.Pod == name.Name && family.Has(ep.Addr) && (!ok || ep.Addr.Less(addr)) {
				addr, node, ok = ep.Addr, ep.NodeName, true
			}
		}
	}
	for _, slice := range s.slices {
		look(slice)
	}
	if ok {
		return addr, node, ok
	}
	for _, owned := range s.legacy {
		for _, slice := range owned {
			look(slice)
		}
	}
	return addr, node, ok
}

// HasEndpoint reports whether an address is some endpoint's.
func (s *Snapshot) HasEndpoint(addr netip.Addr) bool {
	has := func(slice *EndpointSlice) bool {
		return slices.ContainsFunc(slice.Endpoints, func(e Endpoint) bool { return e.Addr == addr })
	}
	for _, slice := range s.slices {
		if has(slice) {
			return true
		}
	}
	for _, owned := range s.legacy {
		if slices.ContainsFunc(owned, has) {
			return true
		}
	}
	return false
}

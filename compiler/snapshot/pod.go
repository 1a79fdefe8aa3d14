package snapshot

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
)

// Pod gives the address of a pod in a family, and the node it runs on, as far
// as an EndpointSlice has it as an endpoint. Of several addresses it gives the least.
func (s *Snapshot) Pod(name ir.Name, family ir.Family) (addr netip.Addr, node string, ok bool) {
	for _, slice := range s.slices {
		if slice.Name.Namespace != name.Namespace {
			continue
		}
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			if ep.Pod == name.Name && family.Has(ep.Addr) && (!ok || ep.Addr.Less(addr)) {
				addr, node, ok = ep.Addr, ep.NodeName, true
			}
		}
	}
	return addr, node, ok
}

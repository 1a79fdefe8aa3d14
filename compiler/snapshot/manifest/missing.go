package manifest

import (
	"cmp"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Unsliced returns a Service with a selector if the input contains no
// EndpointSlice at all, not even an invalid one. In any cluster such a Service has
// an EndpointSlice. It returns "" if nothing is missing.
func (r *Reader) Unsliced() string {
	if r.slices {
		return ""
	}
	return r.sliced
}

// NoSlices returns the message for a snapshot without an EndpointSlice. service
// is the result of Unsliced.
func NoSlices(service string) string {
	return "has no EndpointSlice, but in every cluster " + service + " has one because of its selector"
}

// Missing returns what the Snapshot of this Reader lacks compared with any cluster,
// and which rules a node would lose because of it, or "". A failed or incomplete
// kubectl command produces such a file, and manifests in Git lack clusterIPs, too.
// Every cluster has Service default/kubernetes.
func (r *Reader) Missing(s *snapshot.Snapshot) string {
	if services, _, _ := s.Count(); services == 0 {
		return "has no Service, and all rules for Services would be removed"
	}
	if service := cmp.Or(r.sliced, r.selects); service != "" && !r.slices {
		return NoSlices(service) + ", and all backends would be removed"
	}
	return ""
}

package snapshot

// Unsliced names a Service where what was read has no EndpointSlice at all, not even one that is left
// out: any cluster has one of the Service, as it has of each with a selector. Empty: there is none.
func (r *Reader) Unsliced() string {
	if r.slices {
		return ""
	}
	return r.sliced
}

// NoSlices says of a snapshot that it has no EndpointSlice, for a Service that Unsliced named.
func NoSlices(service string) string {
	return "has no EndpointSlice, and in any cluster " + service + " has one, by its selector"
}

// Lacks says what a Snapshot that the Reader made lacks that any cluster has, and what of its rules a node would
// lose for that; empty: it lacks nothing. A failed kubectl leaves such a file behind, or one that
// was not asked for all. A cluster without Services is no such thing: it has Nodes.
func (r *Reader) Lacks(s *Snapshot) string {
	if len(s.services)+len(s.nodes) == 0 {
		return "has no Service and no Node, and all rules for Services would go"
	}
	if service := r.Unsliced(); service != "" {
		return NoSlices(service) + ", and all backends would go"
	}
	return ""
}

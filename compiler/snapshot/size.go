package snapshot

import "reflect"

// Bytes estimates the memory of the Snapshot in bytes. It counts only the headers
// of strings, most of which are shared among objects. Its cost depends on the
// number of objects, not of endpoints.
func (s *Snapshot) Bytes() int {
	n := 0
	for _, svc := range s.services {
		n += sizeOf(svc) + arrayOf(svc.ClusterIPs) + arrayOf(svc.IPFamilies) + arrayOf(svc.ExternalIPs) +
			arrayOf(svc.Ports) + arrayOf(svc.LoadBalancer) + arrayOf(svc.SourceRanges)
	}
	for slice := range s.all {
		n += sizeOf(slice) + arrayOf(slice.Ports) + arrayOf(slice.Endpoints) + arrayOf(slice.Addresses)
	}
	for _, node := range s.nodes {
		n += sizeOf(node)
	}
	for _, cidr := range s.cidrs {
		n += sizeOf(cidr)
	}
	return n
}

func sizeOf[T any](*T) int { return int(reflect.TypeFor[T]().Size()) }

// arrayOf returns the size of the array of a slice in bytes.
func arrayOf[T any](l []T) int { return cap(l) * int(reflect.TypeFor[T]().Size()) }

// Count returns the number of objects of each kind.
func (s *Snapshot) Count() (services, endpointSlices, nodes int) {
	return len(s.services), len(s.slices), len(s.nodes)
}

package snapshot

import "reflect"

// Bytes estimates the memory that the Snapshot takes. Texts do not count but
// by their headers: most are shared among objects. It costs what the number of
// objects does, not that of endpoints.
func (s *Snapshot) Bytes() int {
	n := 0
	for _, svc := range s.services {
		n += sizeOf(svc) + arrayOf(svc.ClusterIPs) + arrayOf(svc.IPFamilies) + arrayOf(svc.ExternalIPs) +
			arrayOf(svc.Ports) + arrayOf(svc.LoadBalancer) + arrayOf(svc.SourceRanges)
	}
	for _, slice := range s.slices {
		n += slice.bytes()
	}
	for _, all := range s.legacy {
		for _, slice := range all {
			n += slice.bytes()
		}
	}
	for _, node := range s.nodes {
		n += sizeOf(node)
	}
	for _, cidr := range s.cidrs {
		n += sizeOf(cidr)
	}
	return n
}

func (s *EndpointSlice) bytes() int {
	return sizeOf(s) + arrayOf(s.Ports) + arrayOf(s.Endpoints) + arrayOf(s.Addresses)
}

func sizeOf[T any](*T) int { return int(reflect.TypeFor[T]().Size()) }

// arrayOf returns the size of the array behind a slice.
func arrayOf[T any](l []T) int { return cap(l) * int(reflect.TypeFor[T]().Size()) }

// Count returns how many objects of each kind there are.
func (s *Snapshot) Count() (services, endpointSlices, nodes int) {
	return len(s.services), len(s.slices), len(s.nodes)
}

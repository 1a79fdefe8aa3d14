package snapshot

import (
	"reflect"

	"github.com/proxyc/proxyc/ir"
)

// Dirty is the difference between two states of a Snapshot.
type Dirty struct {
	Services []ir.Name // with a different object or endpoints; unsorted, with duplicates
	Node     bool      // Nodes or ServiceCIDRs differ
	// ServiceObjects and SliceObjects are the numbers of changed objects that
	// Update found.
	ServiceObjects, SliceObjects int
	// ServicesGone and SlicesGone are the numbers of removed objects.
	ServicesGone, SlicesGone int
}

// Empty reports whether nothing differs.
func (d Dirty) Empty() bool { return len(d.Services) == 0 && !d.Node }

// Slice returns an EndpointSlice by name, or nil.
func (s *Snapshot) Slice(name ir.Name) *EndpointSlice { return s.slices[name] }

// Update makes the content of s equal to that of o. It keeps equal objects of s.
func (s *Snapshot) Update(o *Snapshot) Dirty {
	var d Dirty
	update(s.services, o.services, func(name ir.Name, new *Service) {
		setOrDelete(s.services, name, new)
		d.Services = append(d.Services, name)
		d.ServiceObjects++
		if new == nil {
			d.ServicesGone++
		}
	})
	update(s.slices, o.slices, func(name ir.Name, new *EndpointSlice) {
		d.SliceObjects++
		if new == nil {
			d.SlicesGone++
			d.Services = append(d.Services, s.DeleteSlice(name)...)
		} else {
			d.Services = append(d.Services, s.SetSlice(new)...)
		}
	})
	updateFunc(s.legacy, o.legacy, func(a, b []*EndpointSlice) bool { return reflect.DeepEqual(a, b) },
		func(name ir.Name, new []*EndpointSlice, there bool) {
			if there {
				s.SetEndpoints(name, new)
			} else {
				s.DeleteEndpoints(name)
			}
			d.Services = append(d.Services, name)
			d.SliceObjects++
		})
	update(s.nodes, o.nodes, func(name string, new *Node) {
		setOrDelete(s.nodes, name, new)
		d.Node = true
	})
	update(s.cidrs, o.cidrs, func(name string, new *ServiceCIDR) {
		setOrDelete(s.cidrs, name, new)
		d.Node = true
	})
	s.skipped = o.skipped
	return d
}

// ReplaceServices replaces all Services.
func (s *Snapshot) ReplaceServices(all []*Service) Dirty {
	o := *s
	o.services = byName(all, func(svc *Service) ir.Name { return svc.Name })
	return s.Update(&o)
}

// ReplaceSlices replaces all EndpointSlices.
func (s *Snapshot) ReplaceSlices(all []*EndpointSlice) Dirty {
	o := *s
	o.slices = byName(all, func(slice *EndpointSlice) ir.Name { return slice.Name })
	return s.Update(&o)
}

// ReplaceServiceCIDRs replaces all ServiceCIDRs.
func (s *Snapshot) ReplaceServiceCIDRs(all []*ServiceCIDR) Dirty {
	o := *s
	o.cidrs = byName(all, func(c *ServiceCIDR) string { return c.Name })
	return s.Update(&o)
}

func byName[K comparable, T any](all []*T, name func(*T) K) map[K]*T {
	m := make(map[K]*T, len(all))
	for _, v := range all {
		m[name(v)] = v
	}
	return m
}

// update calls change for every key whose value differs, with nil for a key that
// is only in have. change may modify have.
func update[K comparable, T any](have, want map[K]*T, change func(K, *T)) {
	updateFunc(have, want, func(a, b *T) bool { return a == b || reflect.DeepEqual(a, b) },
		func(key K, new *T, _ bool) { change(key, new) })
}

func updateFunc[K comparable, V any](have, want map[K]V, equal func(a, b V) bool, change func(key K, new V, there bool)) {
	if reflect.ValueOf(have).Pointer() == reflect.ValueOf(want).Pointer() {
		return
	}
	for key := range have {
		if _, ok := want[key]; !ok {
			var none V
			change(key, none, false)
		}
	}
	for key, new := range want {
		if old, ok := have[key]; !ok || !equal(old, new) {
			change(key, new, true)
		}
	}
}

func setOrDelete[K comparable, T any](m map[K]*T, key K, v *T) {
	if v == nil {
		delete(m, key)
	} else {
		m[key] = v
	}
}

package snapshot

import (
	"maps"
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
	replace(s.services, o.services, func(name ir.Name, ok bool) {
		d.Services = append(d.Services, name)
		d.ServiceObjects++
		if !ok {
			d.ServicesGone++
		}
	})
	eachChange(s.slices, o.slices, func(name ir.Name, new *EndpointSlice, ok bool) {
		d.SliceObjects++
		if !ok {
			d.SlicesGone++
			d.Services = append(d.Services, s.DeleteSlice(name)...)
		} else {
			d.Services = append(d.Services, s.SetSlice(new)...)
		}
	})
	replace(s.legacy, o.legacy, func(name ir.Name, _ bool) {
		d.Services = append(d.Services, name)
		d.SliceObjects++
	})
	node := func(string, bool) { d.Node = true }
	replace(s.nodes, o.nodes, node)
	replace(s.cidrs, o.cidrs, node)
	s.invalid = o.invalid
	return d
}

// Overlay adds the objects of o, which replace those of the same name, except Services, which the
// caller merges. An object that o skips keeps its version in s.
func (s *Snapshot) Overlay(o *Snapshot) {
	for _, slice := range o.slices {
		s.SetSlice(slice)
	}
	for object, l := range o.invalid {
		if _, ok := s.invalid[object]; !ok {
			s.invalid[object] = l
		}
	}
	maps.Copy(s.legacy, o.legacy)
	maps.Copy(s.nodes, o.nodes)
	maps.Copy(s.cidrs, o.cidrs)
	maps.Copy(s.workloads, o.workloads)
	maps.Copy(s.backends, o.backends)
	maps.Copy(s.customs, o.customs)
	s.applyUncompared(o)
}

// WithEndpoints returns a copy whose endpoints can be replaced.
func (s *Snapshot) WithEndpoints() *Snapshot {
	o := *s
	o.slices, o.byOwner, o.legacy = maps.Clone(s.slices), maps.Clone(s.byOwner), maps.Clone(s.legacy)
	return &o
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

// replace makes have equal to want. It calls changed for every key whose value
// differs; ok is false for a removed one.
func replace[K comparable, V any](have, want map[K]V, changed func(key K, ok bool)) {
	eachChange(have, want, func(key K, new V, ok bool) {
		if ok {
			have[key] = new
		} else {
			delete(have, key)
		}
		changed(key, ok)
	})
}

// eachChange calls change for every key whose value differs. ok is false for a key
// that is only in have. change may modify have.
func eachChange[K comparable, V any](have, want map[K]V, change func(key K, new V, ok bool)) {
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
		old, ok := have[key]
		same := ok && reflect.ValueOf(old).Pointer() == reflect.ValueOf(new).Pointer()
		if !same && (!ok || !reflect.DeepEqual(old, new)) {
			change(key, new, true)
		}
	}
}

package snapshot

import (
	"reflect"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Uncompared is what a file states about traffic, but no rule for Services depends on: an Ingress, a
// route, a policy, a custom resource, the settings of a load balancer or the names of a headless
// Service. A comparison says that it changed.
type Uncompared struct {
	Name    ir.Name
	Content any // as decoded from JSON
	// Part reports that the content belongs to a Service, whose addition and removal are compared.
	Part bool
}

// Uncompared returns them by object: "Ingress shop/web". They must not be changed.
func (s *Snapshot) Uncompared() map[string]Uncompared { return s.uncompared }

// SetUncompared adds or replaces one.
func (s *Snapshot) SetUncompared(object string, u Uncompared) { s.uncompared[object] = u }

// HeadlessService is the kind of a Service without rules.
const HeadlessService = "headless Service"

// applyUncompared adds those of manifests. As with kubectl apply, only fields that a manifest has can
// change an object of the cluster. A snapshot without any object of a kind may have been saved without
// them, so that those of manifests may exist. Titles of parts of Services, which it has, contain a blank.
func (s *Snapshot) applyUncompared(o *Snapshot) {
	kind := func(object string) string { return object[:max(0, strings.LastIndexByte(object, ' '))] }
	saved := map[string]bool{}
	for object := range s.uncompared {
		saved[kind(object)] = true
	}
	for object, u := range o.uncompared {
		if of := kind(object); !saved[of] && !strings.Contains(of, " ") {
			continue
		}
		if old, ok := s.uncompared[object]; !ok || !contains(old.Content, u.Content) {
			s.uncompared[object] = u
		}
	}
}

// contains reports whether a value has all fields of another, with their values.
func contains(v, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		of, ok := v.(map[string]any)
		for key, field := range want {
			ok = ok && contains(of[key], field)
		}
		return ok
	case []any:
		of, ok := v.([]any)
		ok = ok && len(of) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = contains(of[i], want[i])
		}
		return ok
	}
	return reflect.DeepEqual(v, want)
}

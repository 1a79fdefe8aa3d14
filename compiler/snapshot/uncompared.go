package snapshot

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/ir"
)

// Uncompared is an object on which no rule for Services depends, but traffic may: an Ingress, a route, a
// policy or a custom resource. A comparison says that it changed.
type Uncompared struct {
	Name    ir.Name
	Content any // as decoded from JSON
	Copies  []any
}

// Uncompared returns them by object: "Ingress shop/web". They must not be changed.
func (s *Snapshot) Uncompared() map[string]Uncompared { return s.uncompared }

// AddUncompared adds one, or another version of it.
func (s *Snapshot) AddUncompared(object string, u Uncompared) {
	if old, ok := s.uncompared[object]; ok {
		u.Copies = append(old.Copies, old.Content)
	}
	s.uncompared[object] = u
}

// AddNodePorts adds the ports that the pods of a workload of manifests open on their Nodes.
func (s *Snapshot) AddNodePorts(w *Workload) {
	var open []corev1.ContainerPort
	for _, p := range w.Ports {
		if w.HostNetwork || p.HostPort != 0 {
			p.Name = ""
			open = append(open, p)
		}
	}
	if len(open) > 0 || w.HostNetwork {
		s.AddUncompared("ports on the Node of "+w.Object, Uncompared{Name: w.Name, Content: open})
	}
}

// applyUncompared adds those of manifests. As with kubectl apply, only fields that a manifest has can
// change an object of the cluster. A snapshot without any object of a kind may have been saved without
// them, so that those of manifests may exist.
func (s *Snapshot) applyUncompared(o *Snapshot) {
	kind := func(object string) string { return object[:max(0, strings.LastIndexByte(object, ' '))] }
	saved := map[string]bool{}
	for object := range s.uncompared {
		saved[kind(object)] = true
	}
	for object, u := range o.uncompared {
		if old, ok := s.uncompared[object]; saved[kind(object)] && (!ok || !contains(old.Content, u.Content)) {
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

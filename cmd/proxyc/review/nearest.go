package review

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// NearestService returns a hint with the Service whose name is most similar: of the same namespace,
// or else of a similar one. It returns "" for none.
func NearestService(programs ir.Programs, name ir.Name) string {
	var names, namespaces []string
	for svc := range Services(programs) {
		if svc.Name.Namespace == name.Namespace {
			names = append(names, svc.Name.Name)
		} else if svc.Name.Name == name.Name {
			namespaces = append(namespaces, svc.Name.Namespace)
		}
	}
	if near := diag.Nearest(name.Name, names); near != "" {
		name.Name = near
	} else if name.Namespace = diag.Nearest(name.Namespace, namespaces); name.Namespace == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", name)
}

// UnknownNode returns the error about a name that no Node of the snapshots has. It begins with the
// field of the name, and ends with got.
func UnknownNode(field, name, got string, snapshots ...*snapshot.Snapshot) error {
	known := map[string]bool{}
	for _, s := range snapshots {
		for _, n := range s.Nodes() {
			known[n.Name] = true
		}
	}
	const shown = 10
	text := FirstOf(diag.NearestFirst(name, slices.Collect(maps.Keys(known))), shown)
	return fmt.Errorf("%s: must name a Node of the snapshot, which has %s; %s", field, cmp.Or(text, "none"), got)
}

// Services yields the Services of both families; one in both is yielded twice.
func Services(programs ir.Programs) func(yield func(*ir.Service) bool) {
	return func(yield func(*ir.Service) bool) {
		for _, p := range programs.All() {
			for i := range p.Services {
				if !yield(&p.Services[i]) {
					return
				}
			}
		}
	}
}

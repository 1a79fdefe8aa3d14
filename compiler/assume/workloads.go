package assume

import (
	"maps"
	"strings"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Workloads finds workloads by their labels.
type Workloads struct {
	All     []*snapshot.Workload
	byLabel map[label][]*snapshot.Workload
}

// label is a label of pods, in a namespace or, with "", in any. Without a key it is any label.
type label struct{ namespace, key, value string }

// NewWorkloads returns an index of workloads.
func NewWorkloads(all []*snapshot.Workload) Workloads {
	x := Workloads{All: all, byLabel: map[label][]*snapshot.Workload{}}
	for _, w := range all {
		x.add(label{namespace: w.Name.Namespace}, w)
		for key, value := range w.Labels {
			x.add(label{"", key, value}, w)
			x.add(label{w.Name.Namespace, key, value}, w)
		}
	}
	return x
}

func (x *Workloads) add(l label, w *snapshot.Workload) { x.byLabel[l] = append(x.byLabel[l], w) }

// In returns the workloads of a namespace.
func (x *Workloads) In(namespace string) []*snapshot.Workload {
	return x.byLabel[label{namespace: namespace}]
}

// podName is the label that the StatefulSet controller gives each pod: its name.
const podName = "statefulset.kubernetes.io/pod-name"

// Select returns the workloads of a namespace, or with "" of all namespaces, whose pods have the
// labels of a selector that is not empty.
func (x *Workloads) Select(namespace string, selector map[string]string) (out []*snapshot.Workload) {
	pod, onePod := selector[podName]
	if onePod {
		selector = maps.Clone(selector)
		delete(selector, podName)
	}
	some, first := x.In(namespace), true
	for key, value := range selector {
		if has := x.byLabel[label{namespace, key, value}]; first || len(has) < len(some) {
			some, first = has, false
		}
	}
	for _, w := range some {
		if contains(w.Labels, selector) && (!onePod || w.Kind == "StatefulSet" && strings.HasPrefix(pod, w.Name.Name+"-")) {
			out = append(out, w)
		}
	}
	return out
}

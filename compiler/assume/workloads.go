package assume

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Workloads finds workloads by their labels.
type Workloads struct {
	All     []*snapshot.Workload
	byLabel map[label][]*snapshot.Workload
	keys    map[string]bool // of labels
}

// label is a label of pods, in a namespace or, with "", in any. Without a key it is any label.
type label struct{ namespace, key, value string }

// NewWorkloads returns an index of workloads.
func NewWorkloads(all []*snapshot.Workload) Workloads {
	x := Workloads{All: all, byLabel: map[label][]*snapshot.Workload{}, keys: map[string]bool{}}
	for _, w := range all {
		x.add(label{namespace: w.Name.Namespace}, w)
		for key, value := range w.Labels {
			x.add(label{"", key, value}, w)
			x.keys[key] = true
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

// HasKey reports whether a workload has a label with a key.
func (x *Workloads) HasKey(key string) bool { return x.keys[key] }

// Select returns the workloads of a namespace, or with "" of all namespaces, that have or may have
// pods with the labels of a selector that is not empty.
func (x *Workloads) Select(namespace string, selector map[string]string) (out []*snapshot.Workload) {
	some, first := x.In(namespace), true
	if namespace == "" {
		some = x.All
	}
	for key, value := range selector {
		if runtimeLabels[key] != nil {
			continue
		}
		if has := x.byLabel[label{namespace, key, value}]; first || len(has) < len(some) {
			some, first = has, false
		}
	}
	return slices.DeleteFunc(slices.Clone(some), func(w *snapshot.Workload) bool {
		_, ok := podsWith(w, selector)
		return !ok
	})
}

// Undecided returns what may make pods with the labels of a selector, which those of no workload have: a
// workload whose template lacks labels that a program may set and has none with another value, or one of
// the objects of other kinds, customs. It returns "" if there is none. makers are those of other kinds that have a label or
// whose kind or name is one. alone means that no label of the selector is that of a workload, and that there are no such makers.
func (x *Workloads) Undecided(customs *Workloads, namespace string, selector map[string]string) (why string, makers []string, alone bool) {
	lacks := func(w *snapshot.Workload) (keys []string, ok bool) {
		for _, key := range slices.Sorted(maps.Keys(selector)) {
			if _, set := w.Labels[key]; set || runtimeLabels[key] != nil {
				if _, ok := podsWith(w, map[string]string{key: selector[key]}); !ok {
					return nil, false
				}
				continue
			}
			keys = append(keys, key)
		}
		return keys, true
	}
	fewest := len(selector) + 1
	for _, w := range x.In(namespace) {
		if keys, ok := lacks(w); ok && len(keys) < fewest {
			why, fewest = w.Object+" has no label "+strings.Join(keys, " or ")+", which a program may give a pod", len(keys)
		}
	}
	other := ""
	for _, w := range customs.In(namespace) {
		keys, ok := lacks(w)
		if !ok || w.Pods == 0 {
			continue
		}
		other = cmp.Or(other, w.Object)
		if len(keys) < len(selector) || slices.ContainsFunc(slices.Collect(maps.Values(selector)), func(value string) bool {
			return strings.Contains(value, w.Name.Name) || strings.Contains(strings.ToLower(w.Kind)+" "+w.Name.Name, value)
		}) {
			makers = append(makers, w.Object)
		}
	}
	if other = cmp.Or(append(slices.Clip(makers), other)...); other != "" && fewest >= len(selector) { // that no workload has any of the labels is no reason
		why = other + " may make its pods"
	}
	return why, makers, fewest >= len(selector) && len(makers) == 0
}

// everyPod stands for all pods of a workload, in place of the number of one.
const everyPod = -1

// podsWith reports whether a workload has pods with the labels of a selector, and returns the ordinal
// or index of the only one, or everyPod.
func podsWith(w *snapshot.Workload, selector map[string]string) (one int, ok bool) {
	one = everyPod
	for key, value := range selector {
		if has, set := w.Labels[key]; set {
			if has != value {
				return one, false
			}
			continue
		}
		of := runtimeLabels[key]
		if of == nil {
			return one, false
		}
		i, has := of(w, value)
		if !has || one != everyPod && i != everyPod && i != one {
			return one, false
		}
		one = max(one, i)
	}
	return one, true
}

// runtimeLabels are the labels that controllers give pods when they run. Each function reports whether
// pods of a workload have a value, and which.
var runtimeLabels = map[string]func(w *snapshot.Workload, value string) (one int, ok bool){
	"statefulset.kubernetes.io/pod-name": func(w *snapshot.Workload, value string) (int, bool) {
		text, ok := strings.CutPrefix(value, w.Name.Name+"-")
		return ordinal(text, ok && w.Kind == "StatefulSet")
	},
	"apps.kubernetes.io/pod-index": func(w *snapshot.Workload, value string) (int, bool) {
		return ordinal(value, w.Kind == "StatefulSet")
	},
	"batch.kubernetes.io/job-completion-index": func(w *snapshot.Workload, value string) (int, bool) {
		return ordinal(value, w.Indexed)
	},
	"batch.kubernetes.io/job-name":       jobName,
	"job-name":                           jobName,
	"batch.kubernetes.io/controller-uid": jobUID,
	"controller-uid":                     jobUID,
}

func ordinal(text string, ok bool) (int, bool) {
	i, err := strconv.Atoi(text)
	return i, ok && err == nil && i >= 0
}

// jobName accepts the name of a Job, or of one that a CronJob makes.
func jobName(w *snapshot.Workload, value string) (int, bool) {
	return everyPod, w.Kind == "Job" && value == w.Name.Name || w.Kind == "CronJob" && strings.HasPrefix(value, w.Name.Name+"-")
}

// jobUID accepts any value, which the API server makes.
func jobUID(w *snapshot.Workload, _ string) (int, bool) {
	return everyPod, w.Kind == "Job" || w.Kind == "CronJob"
}

// podNumber returns the ordinal or index of a pod of a workload, by its name.
func podNumber(w *snapshot.Workload, pod string) (int, bool) {
	text, ok := strings.CutPrefix(pod, w.Name.Name+"-")
	if w.Kind != "StatefulSet" {
		text, _, _ = strings.Cut(text, "-")
	}
	return ordinal(text, ok)
}

package assume

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// applied is the state while an Overlay is applied.
type applied struct {
	cluster
	*Overlay
	before     map[ir.Name]*snapshot.Service // of the Overlay's Services; nil for a new one
	kept       map[string]bool               // workloads of the Overlay that the API server rejects
	namespaces map[string][]*pod             // the pods of each namespace that changes
	byName     map[ir.Name]*pod
	at         map[place]*pod
	made       map[*snapshot.Workload][]*pod // those that are not terminating
	old        map[string]*snapshot.Workload // of the snapshot, by Object
	sliced     map[string]bool               // the workloads whose pods the EndpointSlices of a Service show
	missing    map[*snapshot.Workload][]int  // the indices of pods that no EndpointSlice has yet
}

// place is an endpoint.
type place struct {
	*snapshot.EndpointSlice
	i int
}

// pod is a pod of the snapshot's EndpointSlices.
type pod struct {
	name   string
	labels map[string]string  // those that the selectors of its Services imply
	load   *snapshot.Workload // that makes it; nil if unknown
	ready  bool
	ending bool // it is terminating
	gone   bool // its workload has no room for it
	places []place
	i      int // among those of its workload
}

// findPods finds the pods of the namespaces that change, and the workloads that make them.
func (a *applied) findPods() {
	loads := map[ir.Name][]*snapshot.Workload{}
	for namespace := range a.namespaces {
		for _, w := range a.workloads.In(namespace) {
			loads[w.Name] = append(loads[w.Name], w)
		}
	}
	services := map[ir.Name][]*pod{}
	earlier := NewWorkloads(slices.Collect(maps.Values(a.old)))
	for _, slice := range a.snap.Document().Slices {
		namespace := slice.Name.Namespace
		if _, ok := a.namespaces[namespace]; !ok {
			continue
		}
		selector := a.was(slice.Service).Selector
		if _, ok := services[slice.Service]; !ok && len(selector) > 0 {
			services[slice.Service] = nil
			for _, w := range earlier.Select(namespace, selector) {
				if one, _ := podsWith(w, selector); one == everyPod {
					a.sliced[w.Object] = true
				}
			}
		}
		for i, e := range slice.Endpoints {
			key := ir.Name{Namespace: namespace, Name: cmp.Or(e.Pod, e.Address)}
			p := a.byName[key]
			if p == nil {
				p = &pod{name: e.Pod, labels: map[string]string{}, load: maker(loads, key)}
				a.byName[key] = p
				a.namespaces[namespace] = append(a.namespaces[namespace], p)
			}
			maps.Copy(p.labels, selector)
			p.ready, p.ending = p.ready || e.Ready, p.ending || e.Terminating
			p.places = append(p.places, place{slice, i})
			a.at[place{slice, i}] = p
			services[slice.Service] = append(services[slice.Service], p)
		}
	}
	for _, service := range slices.SortedFunc(maps.Keys(services), ir.Name.Compare) {
		a.guess(service, services[service])
	}
	for _, pods := range a.namespaces {
		for _, p := range pods {
			if p.load != nil && !p.ending {
				a.made[p.load] = append(a.made[p.load], p)
			}
		}
	}
	for namespace := range a.namespaces {
		for _, w := range a.workloads.In(namespace) {
			a.scale(w, a.made[w])
		}
	}
}

// was returns the written fields of a Service in the snapshot.
func (a *applied) was(service ir.Name) manifest.Written {
	return a.Was[snapshot.ObjectName("Service", service)]
}

// A pod's name is that of its workload and letters of k8s.io/apimachinery/pkg/util/rand, or numbers.
const letters = `[bcdfghjklmnpqrstvwxz2456789]`

var podNames = map[string]*regexp.Regexp{
	"Pod":         regexp.MustCompile(`^$`),
	"Deployment":  regexp.MustCompile(`^-` + letters + `{1,10}-` + letters + `{5}$`),
	"StatefulSet": regexp.MustCompile(`^-\d+$`),
	"CronJob":     regexp.MustCompile(`^-\d+(-\d+)?-` + letters + `{5}$`),
	"":            regexp.MustCompile(`^(-\d+)?-` + letters + `{5}$`), // DaemonSet, Job and others
}

// suffixes match what controllers append to the name of an object for those that they make from it. Pods
// have random letters after the hash of a ReplicaSet or the time of a Job, or they have a number.
var suffixes = map[string]*regexp.Regexp{
	"Pod":        regexp.MustCompile(`(-(` + letters + `{6,10}|\d{8,}))?-` + letters + `{5}$|-\d+$`),
	"ReplicaSet": regexp.MustCompile(`-` + letters + `{1,10}$`),
	"Job":        regexp.MustCompile(`-\d{8,}$`),
}

// MakerName returns the name of the object from which a controller made another one. It returns false
// for a kind that controllers do not make.
func MakerName(kind, name string) (string, bool) {
	suffix := suffixes[kind]
	if suffix == nil {
		return "", false
	}
	return suffix.ReplaceAllString(name, ""), true
}

// maker returns the workload that makes a pod, by its name; nil if there is none.
func maker(loads map[ir.Name][]*snapshot.Workload, pod ir.Name) *snapshot.Workload {
	const parts = 3 // that a name has at most besides that of the workload
	for of, i := pod, 0; i <= parts; i++ {
		for _, w := range loads[of] {
			form, ok := podNames[w.Kind]
			if !ok {
				form = podNames[""]
			}
			if form.MatchString(pod.Name[len(of.Name):]) {
				return w
			}
		}
		of.Name = of.Name[:max(0, strings.LastIndexByte(of.Name, '-'))]
	}
	return nil
}

// guess finds the maker of pods of a Service with names of another form, such as those that a person
// wrote: the only workload that the Service selects.
func (a *applied) guess(service ir.Name, pods []*pod) {
	selector := a.was(service).Selector
	if len(selector) == 0 || slices.ContainsFunc(pods, func(p *pod) bool { return p.load != nil }) {
		return
	}
	loads := a.workloads.Select(service.Namespace, selector)
	if len(loads) != 1 {
		return
	}
	for _, p := range pods {
		if p.name == "" || strings.HasPrefix(p.name, loads[0].Name.Name+"-") {
			p.load = loads[0]
		}
	}
}

// applies reports whether a workload is in the Overlay.
func (a *applied) applies(w *snapshot.Workload) bool {
	return w != nil && a.Objects.Workload(w.Object) != nil
}

// scale marks the pods that a workload loses, and notes those that it gains. What the Overlay does not
// change stays as the snapshot shows it: pods that are pending there, and those of a rollout.
func (a *applied) scale(w *snapshot.Workload, pods []*pod) {
	if a.snap.Workload(w.Object) == nil { // pruned
		for _, p := range pods {
			p.gone = true
		}
		return
	}
	a.readNodes()
	old, n, perNode := a.old[w.Object], a.number(w), w.Pods == snapshot.PerNode
	var was int
	if old != nil {
		was = a.number(old)
	}
	var nodes []*snapshot.Node
	if perNode {
		nodes = a.nodesFor(w)
	}
	index(w, pods, nodes)
	// Without the workload in the snapshot, the number that the manifest does not set is that of the pods.
	unset := old == nil && w.AnyNumber && len(pods) > 0
	if unset && !perNode {
		n = slices.MaxFunc(pods, func(p, q *pod) int { return p.i - q.i }).i + 1
	}
	resized := old == nil || !perNode && (n != was || w.First != old.First)
	moved := a.applies(w) && (old == nil || !samePlacement(old, w))
	used, left := map[int]bool{}, map[int]bool{}
	for _, p := range pods {
		node := a.snap.Node(p.node())
		left[p.i] = moved && node != nil && !a.fits(w, node, perNode || old == nil)
		p.gone = left[p.i] || resized && !unset && (p.i < 0 || p.i >= n)
		used[p.i] = used[p.i] || !p.gone
	}
	had := func(i int) bool { // in the snapshot, perhaps without an endpoint
		switch {
		case unset && !(len(nodes) > 0 && (!constrained(w) || a.labelled[corev1.LabelHostname])): // a DaemonSet has pods wherever it fits
			return true
		case old == nil || !a.sliced[w.Object]:
			return false
		case perNode:
			return len(nodes) == 0 || a.fits(old, nodes[i], false)
		}
		i += w.First - old.First
		return i >= 0 && i < was
	}
	for i := range n {
		if !used[i] && (left[i] || !had(i)) {
			a.missing[w] = append(a.missing[w], i)
		}
	}
}

// index sets the indices of the pods of a workload: the ordinal in a StatefulSet, that of the Node in a
// DaemonSet, whose nodes these are, and otherwise the order in which scaling down keeps them.
func index(w *snapshot.Workload, pods []*pod, nodes []*snapshot.Node) {
	slices.SortStableFunc(pods, func(p, q *pod) int {
		return cmp.Or(ir.Int(q.ready)-ir.Int(p.ready), len(p.name)-len(q.name), strings.Compare(p.name, q.name))
	})
	ordinals := w.Kind == "StatefulSet"
	for i, p := range pods {
		p.i = len(nodes) + i
		if at := slices.IndexFunc(nodes, func(n *snapshot.Node) bool { return n.Name == p.node() }); at >= 0 {
			p.i = at
		}
		_, ok := podNumber(w, p.name)
		ordinals = ordinals && ok
	}
	for _, p := range pods {
		if number, _ := podNumber(w, p.name); ordinals {
			p.i = number - w.First
		}
	}
}

// node returns the name of the Node where a pod runs.
func (p *pod) node() string { return p.places[0].Endpoints[p.places[0].i].NodeName }

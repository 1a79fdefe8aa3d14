package review

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// unknown is why the endpoints of a Service are unknown.
type unknown struct {
	why string
	// alone means that the input has nothing that makes pods of its namespace with one of its labels, but may come with
	// other input. makers are the objects of other kinds that probably make them, or "files" for those that are not read.
	alone  bool
	makers []string
}

// unknowns returns the Services whose endpoints are unknown: the input has no EndpointSlice of them, and
// no workload whose template has their labels.
func (j *Input) unknowns() map[ir.Name]unknown {
	out := map[ir.Name]unknown{}
	if j.StandIns == nil {
		return out
	}
	loads, customs := assume.NewWorkloads(j.Snapshot.Workloads()), assume.NewWorkloads(j.Snapshot.Customs())
	unread := j.Unread()
	for _, svc := range j.Snapshot.Services() {
		w := j.Reader.Written()[svc.Object]
		selector, manifests := w.Selector, j.Pending(svc.Name) || j.Reader.Unsliced() != ""
		if len(selector) == 0 || svc.ClusterIP == "" || len(j.Snapshot.Slices(svc.Name)) > 0 || len(loads.Select(svc.Name.Namespace, selector)) > 0 {
			continue
		}
		if why, makers, alone := loads.Undecided(&customs, svc.Name.Namespace, selector); why != "" && !(alone && unread != "") {
			out[svc.Name] = unknown{why: why, makers: makers, alone: alone}
		} else if unread != "" {
			out[svc.Name] = unknown{why: unread + " are not read, and may make its pods", makers: []string{"files"}}
		} else if manifests && len(loads.In(svc.Name.Namespace)) == 0 {
			out[svc.Name] = unknown{why: "the input has no workload in namespace " + svc.Name.Namespace, alone: true}
		}
	}
	return out
}

// Unknown returns the reasons why the endpoints of Services are unknown.
func (j *Input) Unknown() map[ir.Name]string {
	out := map[ir.Name]string{}
	for name, is := range j.unknowns() {
		out[name] = is.why
	}
	return out
}

// AssumeEndpoints returns Inputs in which each Service whose endpoints are unknown in an Input, or in one
// of two that are compared, has a stand-in for an endpoint, so that the rest of the Service is checked. It
// also returns the reasons for those whose endpoints may differ.
func AssumeEndpoints(of ...*Input) (out []*Input, why map[ir.Name]string) {
	why = map[ir.Name]string{}
	sides := map[*Input]map[ir.Name]unknown{}
	all := map[ir.Name]bool{}
	for _, j := range of {
		with := *j
		with.Snapshot = j.Snapshot.WithEndpoints()
		out, sides[j] = append(out, &with), j.unknowns()
		for name := range sides[j] {
			all[name] = true
		}
	}
	for name := range all {
		have := slices.DeleteFunc(slices.Clone(out), func(j *Input) bool { return j.Snapshot.Service(name) == nil })
		selector := func(j *Input) map[string]string {
			return j.Reader.Written()[j.Snapshot.Service(name).Object].Selector
		}
		was, missing := sides[of[0]][name]
		is, missed := sides[of[len(of)-1]][name]
		same := maps.Equal(selector(have[0]), selector(have[len(have)-1]))
		if missing != missed && (was.alone || is.alone || missed && same && len(is.makers) == 0) {
			continue // a workload or its label is removed or added
		}
		changed := !same || !slices.Equal(was.makers, is.makers)
		if len(have) == len(of) && (len(of) == 1 || missing != missed || changed || retargeted(have[0], have[1], name)) {
			why[name] = cmp.Or(is.why, was.why)
		}
		for _, j := range have {
			svc := j.Snapshot.Service(name)
			w := j.Reader.Written()[svc.Object]
			node := j.Facts.NodeName
			if nodes := j.Snapshot.Nodes(); len(nodes) > 0 && j.Snapshot.Node(node) == nil {
				node = nodes[0].Name
			}
			j.StandIns.Behind(j.Snapshot, svc, &w, node)
		}
	}
	return out, why
}

// retargeted reports whether a port of a Service has another target port, and at least one of the two is a
// name, whose number only the pods have.
func retargeted(was, is *Input, name ir.Name) bool {
	a, b := was.Snapshot.Service(name), is.Snapshot.Service(name)
	targets := is.Reader.Written()[b.Object].TargetPorts
	for i, old := range was.Reader.Written()[a.Object].TargetPorts {
		j := slices.IndexFunc(b.Ports, func(p snapshot.ServicePort) bool {
			return p.Port == a.Ports[i].Port && p.Protocol == a.Ports[i].Protocol
		})
		if j >= 0 && j < len(targets) && old != targets[j] && (old.Type == intstr.String || targets[j].Type == intstr.String) {
			return true
		}
	}
	return false
}

func workloadsIn(all []manifest.Version) (loads []*snapshot.Workload) {
	for _, v := range all {
		if load, ok := v.Value.(*snapshot.Workload); ok {
			loads = append(loads, load)
		}
	}
	return loads
}

// versions returns the versions of objects that occur several times, without fields on which no flow
// depends. Workloads are left out unless a Service of an Input selects them, and labels of pods unless a selector
// has the key.
func (j *Input) versions(sides ...*Input) map[string][]manifest.Version {
	out := j.Reader.Versions()
	var loads []*snapshot.Workload
	for _, all := range out {
		loads = append(loads, workloadsIn(all)...)
	}
	index, keys, selected := assume.NewWorkloads(loads), map[string]bool{}, map[*snapshot.Workload]bool{}
	for _, side := range append(sides, j) {
		several := side.Reader.Versions()
		for object, w := range side.Reader.Written() {
			_, name := snapshot.ParseObject(object)
			for _, v := range append(several[object], manifest.Version{Written: w}) {
				for key := range v.Written.Selector {
					keys[key] = true
				}
				if len(v.Written.Selector) == 0 {
					continue
				}
				for _, load := range index.Select(name.Namespace, v.Written.Selector) {
					selected[load] = true
				}
			}
		}
	}
	for _, all := range out {
		for i := range all {
			w := &all[i].Written
			w.Ignore, w.Labels, w.Rejected, w.Order = "", nil, nil, 0
			if load, ok := all[i].Value.(*snapshot.Workload); ok && !selected[load] {
				all[i] = manifest.Version{}
			} else if ok {
				pods := *load
				pods.Labels = maps.Clone(load.Labels)
				maps.DeleteFunc(pods.Labels, func(key, _ string) bool { return !keys[key] })
				all[i].Value = &pods
			}
		}
	}
	maps.DeleteFunc(out, func(_ string, all []manifest.Version) bool {
		return !slices.ContainsFunc(all, func(v manifest.Version) bool { return v.Value != nil })
	})
	return out
}

func sameVersion(a, b manifest.Version) bool { return reflect.DeepEqual(a, b) }

// Reordered returns the objects of which both sides have the same versions, but the second one uses another, since files
// moved. It should keep the returned versions.
func Reordered(was, is *Input) map[string]any {
	keep := map[string]any{}
	after, raw := is.versions(was), was.Reader.Versions()
	for object, old := range was.versions(is) {
		now, used := after[object], raw[object][len(raw[object])-1].Value
		has := func(v manifest.Version) bool { return reflect.DeepEqual(v.Value, used) }
		if snapshot.SameElements(old, now) && !sameVersion(old[len(old)-1], now[len(now)-1]) && slices.ContainsFunc(is.Reader.Versions()[object], has) {
			keep[object] = used
		}
	}
	return keep
}

// OtherVersions returns the objects of selected names that occur several times, of which versions that are
// not compared differ.
func OtherVersions(was, is *Input, of func(ir.Name) bool) (out []string) {
	before, after := was.versions(is), is.versions(was)
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, object := range slices.Sorted(maps.Keys(all)) {
		_, name := snapshot.ParseObject(object)
		old, now := before[object], after[object]
		if of(name) && !snapshot.SameElements(old[:max(0, len(old)-1)], now[:max(0, len(now)-1)]) {
			out = append(out, object+" (one of several of this name)")
		}
	}
	return out
}

// Ambiguous returns, by Service, the object that occurs several times with differences: the Service, or a
// workload that it selects. Only the last one is in the Snapshot.
func (j *Input) Ambiguous() map[ir.Name]string {
	out := map[ir.Name]string{}
	several := map[string]bool{}
	var loads []*snapshot.Workload
	for object, all := range j.versions() {
		if several[object] = len(slices.CompactFunc(slices.Clone(all), sameVersion)) > 1; several[object] {
			loads = append(loads, workloadsIn(all)...)
		}
	}
	index := assume.NewWorkloads(loads)
	for _, svc := range j.Snapshot.Services() {
		selector := j.Reader.Written()[svc.Object].Selector
		if several[svc.Object] {
			out[svc.Name] = svc.Object
		} else if of := index.Select(svc.Name.Namespace, selector); len(selector) > 0 && len(of) > 0 {
			out[svc.Name] = of[0].Object
		}
	}
	return out
}

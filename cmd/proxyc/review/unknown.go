package review

import (
	"cmp"
	"maps"
	"slices"

	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/ir"
)

// unknown is why the endpoints of a Service are unknown.
type unknown struct {
	why string
	// alone means that the input has nothing that makes pods of its namespace, but may come with other
	// input. custom means that an object of another kind may make them.
	alone, custom bool
}

// unknowns returns the Services whose endpoints are unknown: the input has no EndpointSlice of them, and
// no workload whose template has their labels.
func (j *Input) unknowns() map[ir.Name]unknown {
	out := map[ir.Name]unknown{}
	if j.StandIns == nil {
		return out
	}
	loads, customs := assume.NewWorkloads(j.Snapshot.Workloads()), assume.NewWorkloads(j.Snapshot.Customs())
	for _, svc := range j.Snapshot.Services() {
		selector := j.Reader.Written()[svc.Object].Selector
		if len(selector) == 0 || svc.ClusterIP == "" || svc.ClusterIP == "None" || len(j.Snapshot.Slices(svc.Name)) > 0 {
			continue
		}
		if why, custom := loads.Undecided(&customs, svc.Name.Namespace, selector); why != "" {
			out[svc.Name] = unknown{why: why, custom: custom}
		} else if j.Pending(svc.Name) && len(loads.In(svc.Name.Namespace)) == 0 {
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

// AssumeEndpoints gives each Service whose endpoints are unknown in an Input, or in one of two that are
// compared, a stand-in for an endpoint in all of them, so that the rest of the Service is checked. It
// returns the reasons for those whose endpoints may differ, and a function that restores the Inputs.
func AssumeEndpoints(of ...*Input) (why map[ir.Name]string, restore func()) {
	why = map[ir.Name]string{}
	before := map[*Input]*Input{}
	sides := map[*Input]map[ir.Name]unknown{}
	all := map[ir.Name]bool{}
	for _, j := range of {
		saved := *j
		before[j], sides[j] = &saved, j.unknowns()
		for name := range sides[j] {
			all[name] = true
		}
	}
	for name := range all {
		have := slices.DeleteFunc(slices.Clone(of), func(j *Input) bool { return j.Snapshot.Service(name) == nil })
		selector := func(j *Input) map[string]string {
			return j.Reader.Written()[j.Snapshot.Service(name).Object].Selector
		}
		first, last := have[0], have[len(have)-1]
		was, missing := sides[first][name]
		is, missed := sides[last][name]
		same := maps.Equal(selector(first), selector(last))
		if missing != missed && (was.alone || is.alone || missed && same && !is.custom) {
			continue // a workload or its label is removed or added
		}
		if len(have) == len(of) && (len(of) == 1 || missing != missed || !same) {
			why[name] = cmp.Or(is.why, was.why)
		}
		for _, j := range have {
			if j.Snapshot == before[j].Snapshot {
				j.Snapshot = j.Snapshot.WithEndpoints()
			}
			svc := j.Snapshot.Service(name)
			w := j.Reader.Written()[svc.Object]
			node := j.Facts.NodeName
			if nodes := j.Snapshot.Nodes(); len(nodes) > 0 && j.Snapshot.Node(node) == nil {
				node = nodes[0].Name
			}
			j.StandIns.Behind(j.Snapshot, svc, &w, node)
		}
	}
	return why, func() {
		for j, saved := range before {
			j.Snapshot = saved.Snapshot
		}
	}
}

package diff

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

// noEndpoints is the reason of the compiler for a port without endpoints.
const noEndpoints = "no endpoints"

// name names the field because of which a port has no endpoints on one side, instead of the port itself.
func (d *Diff) name(f *flow.Flow) {
	for side := range f.Cause {
		none, other := &f.Cause[side], &f.Cause[1-side]
		if none.Reason != noEndpoints || other.Reason == noEndpoints || d.sides[0] == nil {
			continue
		}
		o, ok := d.missing(none.Origin, f, side)
		if !ok {
			continue
		}
		if none.Origin = o; d.sides[1-side].Has(o.Object) && other.Object == d.service(f) {
			other.Object, other.Field = o.Object, o.Field
		}
	}
}

// service returns the object of the Service of a flow.
func (d *Diff) service(f *flow.Flow) string {
	if i := slices.IndexFunc(f.Cause[:], func(c flow.Cause) bool { return strings.HasPrefix(c.Object, "Service ") }); i >= 0 {
		return f.Cause[i].Object
	}
	return ""
}

// missing returns the field that differs, and because of which a port, the origin, has no endpoints.
func (d *Diff) missing(at ir.Origin, f *flow.Flow, side int) (o ir.Origin, ok bool) {
	is, was := d.sides[side], d.sides[1-side]
	i, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(at.Field, "spec.ports["), "]"))
	_, name := snapshot.ParseObject(at.Object)
	svc := is.Snapshot.Service(name)
	if err != nil || svc == nil || i >= len(svc.Ports) {
		return o, false
	}
	old := was.Snapshot.Service(svc.Name)
	if old == nil {
		return o, false
	}
	a, b := was.Reader.Written()[svc.Object], is.Reader.Written()[svc.Object]
	if !maps.Equal(a.Selector, b.Selector) {
		return ir.Origin{Object: svc.Object, Field: "spec.selector", Reason: noEndpoints}, true
	}
	protocol, _ := ir.ParseProtocol(svc.Ports[i].Protocol)
	port := ir.ServicePort{Service: svc.Name, Port: svc.Ports[i].Name, Protocol: max(protocol, ir.TCP)}
	if len(is.Snapshot.Slices(svc.Name)) == 0 {
		return d.unmatched(svc, was, is)
	}
	if i < len(old.Ports) && !is.Snapshot.Slices(svc.Name)[0].Assumed() {
		switch p, q := &old.Ports[i], &svc.Ports[i]; {
		case p.Name != q.Name:
			return ir.Origin{Object: svc.Object, Field: at.Field + ".name", Reason: "no EndpointSlice has the port"}, true
		case p.Protocol != q.Protocol:
			return ir.Origin{Object: svc.Object, Field: at.Field + ".protocol", Reason: "no EndpointSlice has the port"}, true
		}
	}
	for _, m := range lint.Misses(is.Snapshot, f.Nodes[0], port, f.Family, false) {
		switch {
		case m.Origin.Object == "":
		case strings.HasSuffix(m.Origin.Field, ".containers") && i < min(len(a.TargetPorts), len(b.TargetPorts)) && a.TargetPorts[i] != b.TargetPorts[i]:
			return ir.Origin{Object: svc.Object, Field: at.Field + ".targetPort", Reason: "no container has the port"}, true
		default:
			return ir.Origin{Object: m.Origin.Object, Field: m.Origin.Field, Reason: m.Text}, true
		}
	}
	return o, false
}

// unmatched returns the field of the workload that made the endpoints of a Service, and no longer does.
func (d *Diff) unmatched(svc *snapshot.Service, was, is *review.Input) (o ir.Origin, ok bool) {
	for _, of := range was.Workloads().Endpoints(svc.Name) {
		for _, text := range of {
			kind, name, named := strings.Cut(text, " ")
			if !named {
				name = text
			}
			all := is.Snapshot.Workloads()
			i := slices.IndexFunc(all, func(w *snapshot.Workload) bool {
				return w.Name.String() == name && (!named || w.Kind == kind)
			})
			switch {
			case i >= 0 && all[i].Pending.Field != "":
				return all[i].Pending, true
			case i >= 0 && all[i].Pods == 0:
				return ir.Origin{Object: all[i].Object, Field: "spec.replicas", Reason: "the workload has 0 replicas"}, true
			case i >= 0:
				return ir.Origin{Object: all[i].Object, Field: all[i].Template("metadata.labels"), Reason: "the selector does not match"}, true
			case was.Snapshot.Workload(text) != nil:
				return ir.Origin{Object: text, Reason: "does not exist"}, true
			}
		}
	}
	return o, false
}

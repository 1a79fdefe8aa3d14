package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// workloads compares Services with the workloads of manifests, where no EndpointSlice of a cluster
// says which pods a Service has.
func workloads(c *cluster, s *service) {
	if len(s.written.Selector) == 0 || s.ProxyName || s.Type == "ExternalName" {
		return
	}
	var all []*snapshot.Workload
	for _, w := range c.workloads {
		if w.Name.Namespace == s.Name.Namespace {
			all = append(all, w)
		}
	}
	if len(all) == 0 || slices.ContainsFunc(s.slices, func(slice *snapshot.EndpointSlice) bool { return !slice.Assumed() }) {
		return
	}
	selected := assume.Selected(all, s.written.Selector)
	if len(selected) == 0 {
		c.unmatched(s, all)
		return
	}
	if len(selected) > 1 {
		c.info(s, diag.SelectorSeveral, "spec.selector", "selects the pods of "+objectsOf(selected)+": each is a backend")
	}
	if !slices.ContainsFunc(selected, func(w *snapshot.Workload) bool { return w.Pods != 0 }) {
		c.info(s, diag.NoEndpoints, "spec.selector", "selects "+objectsOf(selected)+" with 0 replicas: the Service has no endpoint, so connections are rejected")
	}
	for i, target := range s.written.TargetPorts {
		if i < len(s.Ports) {
			c.targetPort(s, i, target, selected)
		}
	}
}

// unmatched reports a selector that matches no workload, with the labels that come nearest.
func (c *cluster) unmatched(s *service, all []*snapshot.Workload) {
	best, fewest := (*snapshot.Workload)(nil), len(s.written.Selector)
	var differs []string
	near := false
	for _, w := range all {
		var wrong []string
		misspelt := false
		for _, key := range slices.Sorted(maps.Keys(s.written.Selector)) {
			want := s.written.Selector[key]
			switch has, ok := w.Labels[key]; {
			case ok && has == want:
			case ok:
				wrong = append(wrong, key+"="+has)
				misspelt = misspelt || diag.Nearest(want, []string{has}) != ""
			default:
				wrong = append(wrong, "no label "+key)
				misspelt = misspelt || diag.Nearest(key, slices.Collect(maps.Keys(w.Labels))) != ""
			}
		}
		if misspelt && !near || misspelt == near && len(wrong) < fewest {
			best, fewest, differs, near = w, len(wrong), wrong, misspelt
		}
	}
	msg := "matches no workload of the input"
	if best != nil {
		msg += fmt.Sprintf(": the nearest, %s, has %s", best.Object, strings.Join(differs, " and "))
	}
	severity := diag.Warning
	if c.Snapshot.Customs(s.Name.Namespace) && !near {
		severity, msg = diag.Info, msg+"; the controller of a custom resource may make the pods"
	}
	c.addService(s, severity, diag.SelectorUnmatched, "spec.selector", msg)
}

// targetPort reports a target port that no container of the selected workloads has.
func (c *cluster) targetPort(s *service, i int, target intstr.IntOrString, selected []*snapshot.Workload) {
	p := s.Ports[i]
	path := fmt.Sprintf("spec.ports[%d].targetPort", i)
	var names []string
	declares := false // some container lists its ports
	for _, w := range selected {
		for _, has := range w.Ports {
			if protocolOf(string(has.Protocol)) != protocolOf(p.Protocol) {
				continue
			}
			declares = true
			if target.Type == intstr.String && has.Name == target.StrVal || target.Type == intstr.Int && has.ContainerPort == target.IntVal {
				return
			}
			if has.Name != "" && !slices.Contains(names, has.Name) {
				names = append(names, has.Name)
			}
		}
	}
	switch {
	case target.Type == intstr.String:
		list := "they name no port"
		if len(names) > 0 {
			list = "they have " + strings.Join(names, ", ")
		}
		effect := "connections are rejected"
		if s.ClusterIP == "None" {
			effect = "its DNS record for the port is missing"
		}
		d := diag.Diagnostic{Severity: diag.Warning, Code: diag.TargetPortUnknown, Object: s.Object, Path: path, Hint: diag.DidYouMean(target.StrVal, names),
			Msg: fmt.Sprintf("no container of %s has a %s port named %q, %s: %s", objectsOf(selected), protocolOf(p.Protocol), target.StrVal, list, effect)}
		c.found.Add(d)
	case declares:
		c.info(s, diag.TargetPortUndeclared, path, fmt.Sprintf("no container of %s declares %s port %d", objectsOf(selected), protocolOf(p.Protocol), target.IntVal))
	}
}

// backendPorts reports references of Ingresses and routes to ports that a Service of the input does
// not have.
func backendPorts(c *cluster) {
	for _, b := range c.Snapshot.Backends() {
		svc := c.Snapshot.Service(b.Service)
		if svc == nil || svc.Type == "ExternalName" || svc.HasPort(&b) {
			continue
		}
		want := b.Name
		if b.Port != 0 {
			want = fmt.Sprint(b.Port)
		}
		var has, names []string
		for _, p := range svc.Ports {
			text := fmt.Sprint(p.Port)
			if p.Name != "" {
				names = append(names, p.Name)
				text += " (" + p.Name + ")"
			}
			has = append(has, text)
		}
		c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.BackendPort, Object: b.Object, Path: b.Path, Hint: diag.DidYouMean(b.Name, names),
			Msg: fmt.Sprintf("%s has no port %s, only %s: it cannot be reached", svc.Object, want, strings.Join(has, ", "))})
	}
}

// objectsOf lists workloads.
func objectsOf(list []*snapshot.Workload) string {
	const shown = 3
	var names []string
	for _, w := range list[:min(shown, len(list))] {
		names = append(names, w.Object)
	}
	if more := len(list) - shown; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

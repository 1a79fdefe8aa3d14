package lint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// workloads compares Services with the workloads of manifests, where no EndpointSlice of a cluster
// says which pods a Service has.
func workloads(c *cluster, s *service) {
	if len(s.written.Selector) == 0 || s.ProxyName || s.Type == "ExternalName" {
		return
	}
	if slices.ContainsFunc(s.slices, func(slice *snapshot.EndpointSlice) bool { return !slice.Assumed() }) {
		return
	}
	selected := c.workloads.Select(s.Name.Namespace, s.written.Selector)
	if len(selected) == 0 {
		c.unmatched(s)
		return
	}
	backends := slices.DeleteFunc(slices.Clone(selected), func(w *snapshot.Workload) bool {
		return len(s.Ports) > 0 && len(assume.PortsOf(s.Service, &s.written, w)) == 0
	})
	jobs := slices.DeleteFunc(slices.Clone(backends), func(w *snapshot.Workload) bool { return w.Kind != "Job" && w.Kind != "CronJob" })
	switch {
	case len(jobs) > 0 && !namesJob(s.written.Selector) && (s.ClusterIP != "None" || len(jobs) < len(backends)):
		effect := "connections go to them until they end"
		if len(jobs) == len(backends) {
			effect += ", and are rejected then"
		}
		c.warn(s, diag.SelectorJob, "spec.selector", "selects the pods of "+objectsOf(jobs)+": "+effect)
	case len(backends) > 1:
		c.info(s, diag.SelectorSeveral, "spec.selector", "selects the pods of "+objectsOf(backends)+": each is a backend")
	}
	waits := func(w *snapshot.Workload) bool { return w.Pending.Field != "" }
	if len(backends) > 0 && !slices.ContainsFunc(backends, func(w *snapshot.Workload) bool { return w.Pods != 0 && !waits(w) }) {
		if i := slices.IndexFunc(backends, waits); i >= 0 {
			o := backends[i].Pending
			c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoEndpoints, Object: o.Object, Path: o.Field, Msg: o.Reason + ": " + s.Object + " has no endpoint, so connections are rejected"})
			s.explained = true
			return
		}
		c.info(s, diag.NoEndpoints, "spec.selector", "selects "+objectsOf(backends)+" with 0 replicas: the Service has no endpoint, so connections are rejected")
		s.explained = true
	}
	for i, target := range s.written.TargetPorts {
		if i < len(s.Ports) {
			c.targetPort(s, i, target, selected)
		}
	}
}

// unmatched reports a selector that matches no workload, with the labels that come nearest. It is only an
// info where the pods may come from elsewhere, unless a label is nearly the same.
func (c *cluster) unmatched(s *service) {
	msg := "matches no workload of namespace " + s.Name.Namespace
	if own := c.customs.Select(s.Name.Namespace, s.written.Selector); len(own) > 0 {
		s.explained = true
		c.info(s, diag.SelectorUnmatched, "spec.selector", msg+", but "+objectsOf(own)+", from which no endpoints are assumed")
		return
	}
	if elsewhere := c.workloads.Select("", s.written.Selector); len(elsewhere) > 0 {
		d := diag.Diagnostic{Severity: diag.Warning, Code: diag.SelectorUnmatched, Object: s.Object, Path: "spec.selector", Msg: msg + ", but " + objectsOf(elsewhere) + " of another one"}
		if s.Name.Namespace == corev1.NamespaceDefault {
			d.Hint = "set metadata.namespace"
		}
		c.found.Add(d)
		s.explained = true
		return
	}
	all := c.workloads.In(s.Name.Namespace)
	if len(all) == 0 {
		return // the input has no workloads at all, or not those of the namespace
	}
	best, near := (*snapshot.Workload)(nil), false
	others := c.customs.In(s.Name.Namespace)
	if c.compared += len(all) + len(others); c.compared <= mostCompared {
		best, near = c.nearestWorkload(s.written.Selector, all)
	}
	if best != nil {
		msg += fmt.Sprintf(": the nearest, %s, has %s", best.Object, strings.Join(manifest.Mismatches(s.written.Selector, best.Labels), " and "))
	}
	named := slices.ContainsFunc(others, func(w *snapshot.Workload) bool { return names(s.written.Selector, w.Name.Name) })
	if named && best != nil && len(manifest.Mismatches(s.written.Selector, best.Labels)) == len(s.written.Selector) {
		near = false // only a resemblance, against a name
	}
	severity := diag.Warning
	switch {
	case near || c.compared > mostCompared:
	case best != nil && c.setLater(s.written.Selector, best):
		severity, msg = diag.Info, msg+", which a program may give a pod when it runs"
	case c.Unread:
		severity, msg = diag.Info, msg+"; files that are not read may have one"
	case named:
		severity, msg = diag.Info, msg+"; another object of the input may make the pods"
	case !slices.ContainsFunc(all, func(w *snapshot.Workload) bool { return resembles(s.written.Selector, w.Labels) }):
		severity, msg = diag.Info, msg+", of which none has such labels"
	}
	c.addService(s, severity, diag.SelectorUnmatched, "spec.selector", msg)
	s.explained = true
}

// mostCompared bounds the comparisons of selectors with workloads that they do not match, which are
// only for the message.
const mostCompared = 1 << 20

// nearestWorkload returns the workload whose labels need the fewest changes to match a selector, and
// whether one of them looks misspelt. Of several such workloads, a misspelt one is nearest. But none
// is nearer than one that lacks only labels that are set later.
func (c *cluster) nearestWorkload(selector map[string]string, all []*snapshot.Workload) (best *snapshot.Workload, near bool) {
	fewest := len(selector)
	for _, w := range all {
		if c.setLater(selector, w) {
			return w, false
		}
		wrong, misspelt := 0, false
		for key, want := range selector {
			switch has, ok := w.Labels[key]; {
			case ok && has == want:
				continue
			case ok:
				misspelt = misspelt || diag.Nearest(want, []string{has}) != ""
			default:
				misspelt = misspelt || misspeltKey(key, want, w.Labels)
			}
			wrong++
		}
		if wrong < fewest || wrong == fewest && misspelt && !near {
			best, fewest, near = w, wrong, misspelt
		}
	}
	return best, near
}

// misspeltKey reports whether one of the labels has the wanted value, and a key that is nearly the
// wanted one.
func misspeltKey(key, want string, has map[string]string) bool {
	prefix, name := cutKey(key)
	for k, v := range has {
		p, n := cutKey(k)
		if v == want && (p == prefix && diag.Nearest(name, []string{n}) != "" || n == name && diag.Nearest(prefix, []string{p}) != "") {
			return true
		}
	}
	return false
}

// cutKey cuts the key of a label into its prefix and name.
func cutKey(key string) (prefix, name string) {
	i := strings.LastIndexByte(key, '/') + 1
	return key[:i], key[i:]
}

// setLater reports whether the labels of a workload lack only labels that programs seem to give their
// pods when they run, such as the primary of a database: no template of the input has them.
func (c *cluster) setLater(selector map[string]string, w *snapshot.Workload) bool {
	has := 0
	for key, want := range selector {
		switch value, ok := w.Labels[key]; {
		case ok && value != want || !ok && (c.workloads.HasKey(key) || misspeltKey(key, want, w.Labels)):
			return false
		case ok:
			has++
		}
	}
	return has > 0
}

// names reports whether a selector has a name in a value.
func names(selector map[string]string, name string) bool {
	return name != "" && slices.ContainsFunc(slices.Collect(maps.Values(selector)), func(value string) bool { return strings.Contains(value, name) })
}

// resembles reports whether labels have a key or a value of a selector.
func resembles(selector, labels map[string]string) bool {
	for key, want := range selector {
		for k, v := range labels {
			if k == key || v == want {
				return true
			}
		}
	}
	return false
}

// namesJob reports whether a selector has a label that controllers give only to pods of Jobs.
func namesJob(selector map[string]string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(selector)), func(key string) bool {
		return key == "job-name" || key == "controller-uid" || strings.HasPrefix(key, "batch.kubernetes.io/")
	})
}

// governed reports StatefulSets whose serviceName no headless Service of the input has. A missing
// Service is only an info, unless another one seems to be meant.
func governed(c *cluster) {
	for _, w := range c.workloads.All {
		name := ir.Name{Namespace: w.Name.Namespace, Name: w.ServiceName}
		svc := c.Snapshot.Service(name)
		if w.Kind != "StatefulSet" || w.ServiceName == "" || svc != nil && svc.ClusterIP == "None" || c.Snapshot.InvalidService(name) != nil {
			continue
		}
		d := diag.Diagnostic{Severity: diag.Warning, Code: diag.WorkloadService, Object: w.Object, Path: "spec.serviceName", Hint: c.headlessOf(w)}
		if svc != nil {
			d.Msg = "names " + svc.Object + ", which is not headless: some DNS servers do not have the names of its pods"
			d.Hint = cmp.Or(d.Hint, "set spec.clusterIP: None in a Service of this name")
		} else {
			d.Msg = "names Service " + name.String() + ", which the input does not have: its pods have no DNS names of their own"
			if d.Hint = cmp.Or(c.nearService(name), d.Hint); d.Hint == "" {
				d.Severity = diag.Info
			}
		}
		c.found.Add(d)
	}
}

// headlessOf returns a hint with the only headless Service that selects the pods of a workload.
func (c *cluster) headlessOf(w *snapshot.Workload) (hint string) {
	all := c.servicesIn[w.Name.Namespace]
	if c.compared += len(all); c.compared > mostCompared {
		return ""
	}
	for _, name := range all {
		svc := c.Snapshot.Service(ir.Name{Namespace: w.Name.Namespace, Name: name})
		if selector := c.Written[svc.Object].Selector; svc.ClusterIP == "None" && len(selector) > 0 && len(manifest.Mismatches(selector, w.Labels)) == 0 {
			if hint != "" {
				return ""
			}
			hint = "did you mean " + name + "?"
		}
	}
	return hint
}

// nearService returns a hint with the Service of the namespace whose name differs by a misspelling.
func (c *cluster) nearService(name ir.Name) string {
	if near := diag.Misspelling(name.Name, c.servicesIn[name.Namespace]); near != "" {
		return "did you mean " + near + "?"
	}
	return ""
}

// targetPort reports a target port that no container of the selected workloads has.
func (c *cluster) targetPort(s *service, i int, target intstr.IntOrString, selected []*snapshot.Workload) {
	p := s.Ports[i]
	protocol, path := protocolOf(p.Protocol), at("spec.ports", i)
	isMeant := func(has corev1.ContainerPort) bool {
		return target.Type == intstr.String && has.Name == target.StrVal || target.Type == intstr.Int && has.ContainerPort == target.IntVal
	}
	var names, others []string // of ports with the protocol; other protocols of the target port
	declares := false          // some container lists its ports
	for _, w := range selected {
		for _, has := range w.Ports {
			switch of := protocolOf(string(has.Protocol)); {
			case of == protocol && isMeant(has):
				return
			case of == protocol:
				declares = true
				if has.Name != "" && !slices.Contains(names, has.Name) {
					names = append(names, has.Name)
				}
			case isMeant(has) && !slices.Contains(others, of):
				others = append(others, of)
			}
		}
	}
	d := diag.Diagnostic{Severity: diag.Warning, Code: diag.TargetPortUndeclared, Object: s.Object, Path: path + ".targetPort"}
	switch {
	case target.Type == intstr.String:
		c.namedPort(s, i, target.StrVal, names, others, selected)
		return
	case len(others) > 0:
		d.Code, d.Path = diag.TargetPortProtocol, path+".protocol"
		d.Msg = fmt.Sprintf("is %s, but the containers of %s declare port %d for %s, not %s: packets are refused, unless a process listens", protocol, objectsOf(selected), target.IntVal, strings.Join(others, " and "), protocol)
		if s.serves(target, others) { // such as DNS, or HTTP/3 beside HTTP/2
			d.Severity = diag.Info
		}
	case !declares:
		return
	default:
		d.Msg = fmt.Sprintf("no container of %s declares %s port %d", objectsOf(selected), protocol, target.IntVal)
		if only := onlyPort(selected, target.IntVal); only != 0 && len(s.Ports) == 1 {
			d.Msg += fmt.Sprintf(", only %d: connections are refused, unless a process listens", only)
			d.Hint = fmt.Sprintf("set targetPort: %d", only)
		} else {
			d.Severity = diag.Info
		}
	}
	c.found.Add(d)
}

// serves reports whether a port of the Service has the target port for one of the protocols.
func (s *service) serves(target intstr.IntOrString, protocols []string) bool {
	for i, p := range s.Ports {
		if i < len(s.written.TargetPorts) && s.written.TargetPorts[i] == target && slices.Contains(protocols, protocolOf(p.Protocol)) {
			return true
		}
	}
	return false
}

// onlyPort returns the port of a single workload that has no other one, and certainly not the wanted one;
// otherwise 0.
func onlyPort(all []*snapshot.Workload, wanted int32) int32 {
	if len(all) != 1 || !all[0].AllPorts || len(all[0].Ports) != 1 || slices.Contains(all[0].Numbers, wanted) {
		return 0
	}
	return all[0].Ports[0].ContainerPort
}

// namedPort reports the name of a target port that no container has for the protocol.
func (c *cluster) namedPort(s *service, i int, name string, names, others []string, selected []*snapshot.Workload) {
	list := "they name no port"
	if len(others) > 0 {
		list = "but for " + strings.Join(others, " and ")
	} else if len(names) > 0 {
		list = "they have " + strings.Join(names, ", ")
	}
	effect := "connections are rejected"
	if s.ClusterIP == "None" {
		effect = "its DNS record for the port is missing"
	}
	hint := diag.DidYouMean(name, names)
	if isNumber(name) {
		hint = "write " + name + " without quotes: text is the name of a port"
	}
	c.found.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.TargetPortUnknown, Object: s.Object, Path: at("spec.ports", i) + ".targetPort", Hint: hint,
		Msg: fmt.Sprintf("no container of %s has a %s port named %q, %s: %s", objectsOf(selected), protocolOf(s.Ports[i].Protocol), name, list, effect)})
	s.explained = true
}

// backendPorts reports references of Ingresses and routes to ports that a Service of the input does
// not have.
func backendPorts(c *cluster) {
	for _, b := range c.Snapshot.Backends() {
		svc := c.Snapshot.Service(b.Service)
		if svc == nil {
			c.noBackend(&b)
			continue
		}
		if svc.Type == "ExternalName" || svc.HasPort(&b) {
			continue
		}
		want := fmt.Sprintf("named %q", b.Name)
		if b.Port != 0 {
			want = fmt.Sprint(b.Port)
		}
		var has, names []string
		for _, p := range svc.Ports {
			text := fmt.Sprint(p.Port)
			if p.Name != "" {
				names = append(names, p.Name)
				text += fmt.Sprintf(" (named %q)", p.Name)
			}
			has = append(has, text)
		}
		only := "no port"
		if len(has) > 0 {
			only = "only " + strings.Join(has, ", ")
		}
		hint := diag.DidYouMean(b.Name, names)
		if isNumber(b.Name) {
			hint = "a number is in field number"
		}
		d := diag.Diagnostic{Severity: diag.Warning, Code: diag.BackendPort, Object: b.Object, Path: b.Path, Hint: hint,
			Msg: fmt.Sprintf("%s has no port %s, %s: it cannot be reached", svc.Object, want, only)}
		c.lower(&d, svc.Name)
		c.found.Add(d)
	}
}

// isNumber reports whether a name has only digits.
func isNumber(name string) bool { return name != "" && strings.Trim(name, "0123456789") == "" }

// noBackend reports a reference to a Service that the input does not have.
func (c *cluster) noBackend(b *snapshot.Backend) {
	if c.Snapshot.InvalidService(b.Service) != nil {
		return
	}
	d := diag.Diagnostic{Severity: diag.Info, Code: diag.BackendService, Object: b.Object, Path: strings.TrimSuffix(b.Path, ".port") + ".name",
		Msg: "names Service " + b.Service.String() + ", which the input does not have", Hint: c.nearService(b.Service)}
	if d.Hint != "" {
		d.Severity = diag.Warning
	}
	c.found.Add(d)
}

// ignored reports the objects of other kinds.
func ignored(c *cluster) {
	total := 0
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(c.Ignored)) {
		total += c.Ignored[kind]
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, c.Ignored[kind]))
	}
	if total > 0 && len(c.workloads.All) > 0 {
		c.found.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.KindsIgnored, Msg: fmt.Sprintf("objects of other kinds are ignored: %d (%s)", total, strings.Join(kinds, ", "))})
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

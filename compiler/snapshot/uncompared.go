package snapshot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/ir"
)

// Uncompared is an object on which no rule for Services depends, but traffic may: an Ingress, a route, a
// policy or a custom resource. A comparison says that it changed.
type Uncompared struct {
	Object  string
	Name    ir.Name
	Content any   // as decoded from JSON
	Copies  []any // other versions, in the order of the input
	Decides bool  // by itself, who reaches pods
	Renders bool  // programs make objects from all its fields
}

// applying matches the annotations by which tools decide whether, and for how long, they apply an object.
var applying = regexp.MustCompile(`hook|local-config|reconcil|sync-options|prune|ignore-differences|apply-`)

// harmless matches the labels and annotations that only people, monitoring and tools for packages read.
var harmless = regexp.MustCompile(`^(kubectl\.kubernetes\.io|meta\.helm\.sh|prometheus\.io|proxyc\.dev|[a-z-.]*(backstage\.io|cert-manager\.io|checkov\.io|datadoghq\.com|` +
	`kapp\.k14s\.io|kpt\.dev|kube-linter\.io|stakater\.com))/|^config\.kubernetes\.io/(origin|path)|argocd.*/(sync-wave|tracking-id)|change-cause|checksum|` +
	`(^|/)(chart|description|managed-by|resource-policy|revision|version)$`)

// MetadataOf returns the annotations and labels with a meaning for programs.
func MetadataOf(m *metav1.ObjectMeta) map[string]any {
	out := map[string]any{}
	for kind, all := range map[string]map[string]string{"": m.Annotations, "label ": m.Labels} {
		for key, value := range all {
			if !harmless.MatchString(key) {
				out[kind+key] = value
			}
		}
	}
	return out
}

// SettingsOf returns what no rule for a Service depends on, but programs of a cluster read: of its load
// balancer, or, for one without rules, of what selects its endpoints and of its names in DNS.
func SettingsOf(in *corev1.Service, foreign bool) map[string]any {
	spec, content := &in.Spec, MetadataOf(&in.ObjectMeta)
	maps.DeleteFunc(content, func(key string, _ any) bool { // labels without a prefix are private to users
		return strings.HasPrefix(key, "label ") && !strings.Contains(key, "/") && in.Spec.Type != corev1.ServiceTypeLoadBalancer
	})
	if spec.Type == corev1.ServiceTypeLoadBalancer && !foreign {
		if spec.LoadBalancerClass != nil {
			content["spec.loadBalancerClass"] = *spec.LoadBalancerClass
		}
		if spec.LoadBalancerIP != "" {
			content["spec.loadBalancerIP"] = spec.LoadBalancerIP
		}
	}
	if !foreign && spec.Type != corev1.ServiceTypeExternalName && spec.ClusterIP != corev1.ClusterIPNone {
		return content
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		content["spec.externalName"] = spec.ExternalName
	}
	text := fmt.Sprintf("%t %t %q", spec.ClusterIP == corev1.ClusterIPNone, spec.PublishNotReadyAddresses, spec.Selector)
	for _, p := range spec.Ports {
		text += " " + p.TargetPort.String()
	}
	content["spec"] = text
	return content
}

// mesh matches the labels and annotations by which traffic of pods bypasses a service mesh, or another network serves them.
var mesh = regexp.MustCompile(`^(traffic\.sidecar\.istio\.io/|sidecar\.istio\.io/inject$|istio-injection$|(istio\.io/(dataplane-mode|use-waypoint)|(config\.)?linkerd\.io/(inject|opaque-ports|skip-.*)|k8s\.v1\.cni\.cncf\.io/networks)$)`)

// IsMesh reports whether a label or annotation decides how traffic of pods passes a service mesh.
func IsMesh(key string) bool { return mesh.MatchString(key) }

// IdentityOf returns the account and the annotations of pods by which policies and meshes decide about their traffic.
func IdentityOf(annotations map[string]string, spec *corev1.PodSpec) map[string]string {
	out := map[string]string{"serviceAccountName": cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount, "default")}
	for key, value := range annotations {
		if IsMesh(key) {
			out[key] = value
		}
	}
	return out
}

// PlacingOf returns what decides whether the pods of a workload run and become ready, as decoded from JSON,
// except what assumed endpoints depend on anyway.
func PlacingOf(annotations map[string]string, spec *corev1.PodSpec, containers []corev1.Container) map[string]any {
	probes, kept := map[string]corev1.Container{}, maps.Clone(annotations)
	maps.DeleteFunc(kept, func(key, _ string) bool { return !applying.MatchString(key) })
	for _, c := range containers {
		if c.ReadinessProbe != nil || c.StartupProbe != nil || c.LivenessProbe != nil {
			probes[c.Name] = corev1.Container{Name: c.Name, ReadinessProbe: c.ReadinessProbe, StartupProbe: c.StartupProbe, LivenessProbe: c.LivenessProbe}
		}
	}
	text, _ := json.Marshal(map[string]any{
		"metadata": metav1.ObjectMeta{Annotations: kept}, "probes": probes,
		"spec": corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity, SchedulerName: spec.SchedulerName,
			SchedulingGates: spec.SchedulingGates, ReadinessGates: spec.ReadinessGates, Tolerations: spec.Tolerations,
			TopologySpreadConstraints: spec.TopologySpreadConstraints, RuntimeClassName: spec.RuntimeClassName},
	})
	var out map[string]any
	_ = json.Unmarshal(text, &out) // text is JSON
	return out
}

// Uncompared returns them by object: "Ingress shop/web". They must not be changed.
func (s *Snapshot) Uncompared() map[string]Uncompared { return s.uncompared }

// AddUncompared adds one, or another version of it, which may be equal: files may be for different clusters.
func (s *Snapshot) AddUncompared(u Uncompared) {
	if old, ok := s.uncompared[u.Object]; ok {
		u.Copies = append(old.Copies, old.Content)
	}
	s.uncompared[u.Object] = u
}

// Equal reports whether two sides have the same versions, in any order.
func (u Uncompared) Equal(v Uncompared) bool {
	return SameElements(append(slices.Clip(u.Copies), u.Content), append(slices.Clip(v.Copies), v.Content))
}

// SameOutput reports whether programs make the same objects from both sides, as far as their fields show.
func (u Uncompared) SameOutput(v Uncompared) bool { return SameElements(u.outputs(), v.outputs()) }

// Differs reports whether a ConfigMap or Secret has another value of one of some keys on the other side.
func (u Uncompared) Differs(v Uncompared, keys []string) bool {
	values := map[string]int{}
	for side, content := range [...]any{u.Content, v.Content} {
		leaves(content, "", func(field string) {
			key, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(field, ".stringData."), ".data."), ":")
			if slices.Contains(keys, key) {
				values[field] += 1 - 2*side
			}
		})
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(values)), func(n int) bool { return n != 0 })
}

// outputs returns the fields of each version that decide what programs make from it, if there are any.
func (u Uncompared) outputs() (out [][]string) {
	for _, content := range append(slices.Clip(u.Copies), u.Content) {
		var fields []string
		leaves(content, "", func(field string) {
			if u.Renders && !operating.MatchString(field) || !u.Renders && exposed.MatchString(field) {
				fields = append(fields, field)
			}
		})
		if slices.Sort(fields); fields != nil {
			out = append(out, fields)
		}
	}
	return out
}

// leaves adds each field without fields of its own, as ".spec.type: string LoadBalancer", and the end of each list and empty object. The
// paths of the fields of an object in another one contain "{object}".
func leaves(v any, path string, add func(field string)) {
	switch v := v.(type) {
	case map[string]any:
		if v["apiVersion"] != nil && v["kind"] != nil && v["metadata"] != nil {
			path += "{object}"
		}
		for key, field := range v {
			leaves(field, path+"."+key, add)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, item := range v {
			leaves(item, fmt.Sprintf("%s[%d]", path, i), add)
		}
		add(fmt.Sprintf("%s[%d]: ", path, len(v)))
		return
	}
	add(fmt.Sprintf("%s: %T %v", path, v, v))
}

// operating matches the fields that decide only when, how and by whom an object is rendered, or which images, resources and
// number of pods it has, except 0.
var operating = regexp.MustCompile(`^: |^\.metadata\b|^\.spec((\.chart|\.template)\.spec)?\.((retryI|i)nterval|timeout|suspend|prune|wait|force|dependsOn|healthCheck(s|Exprs)|install|upgrade|` +
	`test|rollback|uninstall|driftDetection|maxHistory|serviceAccountName|decryption|persistentClient|info|project|revisionHistoryLimit|syncPolicy|reconcileStrategy|verify|ignoreDifferences|` +
	`\w*[sS]ecretRef|provider|insecure|passCredentials|backOffLimit|jobImage|deletionPolicy|images)[.:[{]|^\.spec\.(sources?(\[\d+\])?\.helm\.valuesObject|values)\.(.*\.)?((image(Tag)?|tag|digest)(\.\w+)?: |resources\.(limits|requests)\.|replica(s|Count): \w+ [1-9])`)

// exposed matches fields and values that decide who reaches Services and pods, in any language, and objects in fields. It
// does not match the same words in sentences, or in queries of Prometheus.
var exposed = regexp.MustCompile(`(?is)(\w*load-?balancer[\w-]*|\w*sourceRanges|\bnodePorts?|\bexternalIPs|\bhostPorts?|\bhostNetwork|\.exposeServices)["'\\]*(\s*[:=]|[.[])|` +
	`(:\s*(string )?["'\\]*|=\s+["']?|=)(loadBalancer|nodePort)["'\\]*\s*([,}\]\n#]|$)|\{object\}|\bapiVersion\b.*\bkind\b.*\bmetadata\b`)

// SameElements reports whether two lists have equal elements, each as often, in any order.
func SameElements[T any](a, b []T) bool {
	b = slices.Clone(b)
	for _, v := range a {
		i := slices.IndexFunc(b, func(w T) bool { return reflect.DeepEqual(v, w) })
		if i < 0 {
			return false
		}
		b = slices.Delete(b, i, i+1)
	}
	return len(b) == 0
}

// NodePorts returns the ports that the pods of a workload of manifests open on their Nodes, if any.
func (w *Workload) NodePorts() (all []Uncompared) {
	var open []corev1.ContainerPort
	for _, p := range w.Ports {
		if w.HostNetwork || p.HostPort != 0 {
			p.Name = ""
			open = append(open, p)
		}
	}
	if len(open) > 0 || w.HostNetwork {
		all = append(all, Uncompared{Object: "ports on the Node of " + w.Object, Name: w.Name, Content: open, Decides: true})
	}
	return all
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
	has, all := map[string]bool{}, true
	leaves(v, "", func(field string) { has[field] = true })
	leaves(want, "", func(field string) { all = all && has[field] })
	return all
}

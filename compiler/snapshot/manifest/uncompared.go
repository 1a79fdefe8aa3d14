package manifest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// uncompared returns the content of an object of another kind that may change traffic: networking
// objects of Kubernetes, and custom resources, from which programs make Services and policies.
func (l *leaf) uncompared(namespace string) (object string, u snapshot.Uncompared) {
	group, _ := splitVersion(l.apiVersion)
	var in map[string]any
	network := strings.HasSuffix(group, "networking.k8s.io") || group == "extensions" && (l.kind == "Ingress" || l.kind == "NetworkPolicy")
	if !network && !isCustom(group) || l.kind == "ServiceCIDR" || l.kind == "IPAddress" || kjson.UnmarshalCaseSensitivePreserveInts(l.text, &in) != nil {
		return "", u
	}
	meta := l.meta(namespace)
	if strings.HasPrefix(l.kind, "Cluster") || strings.HasSuffix(l.kind, "Class") { // belongs to no namespace
		meta.Namespace = ""
	}
	for _, key := range [...]string{"apiVersion", "kind", "status"} {
		delete(in, key)
	}
	in["metadata"] = annotationsOf(meta.Annotations)
	name := snapshot.NameOf(meta)
	if object = snapshot.ObjectName(l.kind, name); strings.ContainsFunc(object, notInNames) {
		return "", u // the API server rejects it, and its text is not for output
	}
	return object, snapshot.Uncompared{Name: name, Content: in}
}

// notInNames reports whether no name of an object has a character, nor the blank after its kind.
func notInNames(c rune) bool {
	return c > '~' || c < ' ' || strings.ContainsRune("\"'`$&*<>()[]{}|\\!#%=;,?^~", c)
}

// annotationsOf returns annotations with a meaning for programs.
func annotationsOf(all map[string]string) map[string]any {
	out := map[string]any{}
	for key, value := range all {
		if key != corev1.LastAppliedConfigAnnotation {
			out[key] = value
		}
	}
	return out
}

// setUncompared adds what no rule for a Service depends on: its load balancer's settings, or the names
// that a headless Service or one of type ExternalName has in DNS.
func setUncompared(s *snapshot.Snapshot, in *corev1.Service, name ir.Name) {
	spec := &in.Spec
	set := func(kind string, part bool, content map[string]any) {
		s.SetUncompared(snapshot.ObjectName(kind, name), snapshot.Uncompared{Name: name, Part: part, Content: content})
	}
	switch {
	case spec.Type == corev1.ServiceTypeLoadBalancer:
		content := annotationsOf(in.Annotations)
		if spec.LoadBalancerClass != nil {
			content["spec.loadBalancerClass"] = *spec.LoadBalancerClass
		}
		if spec.LoadBalancerIP != "" {
			content["spec.loadBalancerIP"] = spec.LoadBalancerIP
		}
		set("load balancer settings of Service", true, content)
	case spec.Type == corev1.ServiceTypeExternalName:
		set("ExternalName Service", false, map[string]any{"externalName": spec.ExternalName})
	case spec.ClusterIP == corev1.ClusterIPNone:
		content := map[string]any{}
		for key, value := range spec.Selector {
			content["selector."+key] = value
		}
		content["publishNotReadyAddresses"] = spec.PublishNotReadyAddresses
		for i, p := range spec.Ports {
			content[fmt.Sprintf("ports[%d]", i)] = fmt.Sprint(p.Name, p.Port, p.Protocol, p.TargetPort.String())
		}
		set(snapshot.HeadlessService, false, content)
	}
}

// replaced records the object of a name before another of this name replaces it. Both may be applied, in
// different clusters.
func (r *Reader) replaced(s *snapshot.Snapshot, object string) {
	at, ok := r.at[object]
	if !ok {
		return
	}
	text := at.part.text
	var content any
	if at.part.yaml != nil {
		text, _, _ = toJSON(at.part.document())
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(text, &content) != nil {
		return
	}
	_, name, _ := strings.Cut(object, " ")
	u := snapshot.Uncompared{Name: ir.Name{Name: name}, Content: content}
	if namespace, name, ok := strings.Cut(name, "/"); ok {
		u.Name = ir.Name{Namespace: namespace, Name: name}
	}
	if r.copies == nil {
		r.copies = map[string]int{}
	}
	r.copies[object]++
	s.SetUncompared(fmt.Sprintf("copy %d of %s", r.copies[object], object), u)
}

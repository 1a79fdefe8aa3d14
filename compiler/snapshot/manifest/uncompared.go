package manifest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/snapshot"
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
		if key != corev1.LastAppliedConfigAnnotation && key != snapshot.AnnotationIgnore {
			out[key] = value
		}
	}
	return out
}

// settings returns what no rule for a Service depends on, but programs of a cluster read: of its load
// balancer, or, for one without rules, of what selects its endpoints and of its names in DNS.
func settings(in *corev1.Service, foreign bool) map[string]any {
	spec, content := &in.Spec, annotationsOf(in.Annotations)
	if spec.Type == corev1.ServiceTypeLoadBalancer && !foreign {
		if spec.LoadBalancerClass != nil {
			content["spec.loadBalancerClass"] = *spec.LoadBalancerClass
		}
		if spec.LoadBalancerIP != "" {
			content["spec.loadBalancerIP"] = spec.LoadBalancerIP
		}
		return content
	}
	text := fmt.Sprintf("%q %t %t %q", spec.ExternalName, spec.ClusterIP == corev1.ClusterIPNone, spec.PublishNotReadyAddresses, spec.Selector)
	for _, p := range spec.Ports {
		text += " " + p.TargetPort.String()
	}
	content["spec"] = text
	return content
}

// SetIn sets a value in a map, which it makes if necessary.
func SetIn[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

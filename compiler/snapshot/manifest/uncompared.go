package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// uncompared returns the content of an object of another kind that may change traffic: networking
// objects of Kubernetes, and custom resources, from which programs make Services and policies.
func (l *leaf) uncompared(namespace string) (u snapshot.Uncompared) {
	group, _ := splitVersion(l.apiVersion)
	var in map[string]any
	network := strings.HasSuffix(group, "networking.k8s.io") || group == "extensions" && (l.kind == "Ingress" || l.kind == "NetworkPolicy")
	others := slices.Contains(changing, group) || group == "" && slices.Contains(plain, l.kind)
	if !network && !others && !isCustom(group) || l.kind == "ServiceCIDR" || l.kind == "IPAddress" || kjson.UnmarshalCaseSensitivePreserveInts(l.text, &in) != nil {
		return u
	}
	meta := l.meta(namespace)
	if strings.HasPrefix(l.kind, "Cluster") || strings.HasSuffix(l.kind, "Class") || l.kind == "Namespace" || others && group != "" && group != "autoscaling" { // belongs to no namespace
		meta.Namespace = ""
	}
	for _, key := range [...]string{"apiVersion", "kind", "status"} {
		delete(in, key)
	}
	if in["metadata"] = snapshot.AnnotationsOf(meta.Annotations); l.kind == "Namespace" { // by which policies select it
		in["labels"] = fmt.Sprint(meta.Labels)
	}
	name := snapshot.NameOf(meta)
	object := strings.Map(named, snapshot.ObjectName(l.kind, name))
	spec, _ := in["spec"].(map[string]any)
	selects := len(spec) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(spec)), selecting.MatchString)
	return snapshot.Uncompared{Object: object, Name: name, Content: in, Decides: strings.HasSuffix(l.kind, "Policy") && selects}
}

// selecting matches the fields in which a policy for traffic names its pods and their peers. Others are about images,
// backups or objects.
var selecting = regexp.MustCompile(`(?i)selector|target|subject|appliedto|gress$|^rules$|^action$`)

// changing are the groups of objects that let programs change other objects, or the number of pods.
var changing = []string{"admissionregistration.k8s.io", "apiregistration.k8s.io", "autoscaling"}

// plain are the kinds without a group that matter: a ConfigMap may contain manifests, settings or names.
var plain = []string{"ConfigMap", "Namespace", "ResourceQuota"}

// named replaces a character that no name of an object has, nor the blank after its kind: a tool may
// replace ${APP} in a name, and the text of others is not for output.
func named(c rune) rune {
	if c > '~' || c < ' ' || strings.ContainsRune("\"'`$&*<>()[]{}|\\!#%=;,?^~", c) {
		return '?'
	}
	return c
}

// settings returns what no rule for a Service depends on, but programs of a cluster read: of its load
// balancer, or, for one without rules, of what selects its endpoints and of its names in DNS.
func settings(in *corev1.Service, foreign bool) map[string]any {
	spec, content := &in.Spec, snapshot.AnnotationsOf(in.Annotations)
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

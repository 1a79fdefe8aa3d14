package manifest

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Written is the fields of an object that affect no packet and that reviews check.
type Written struct {
	Ignore       string               // annotation proxyc.dev/lint-ignore
	Labels       map[string]string    // metadata.labels of Services, workloads and Nodes
	Selector     map[string]string    // spec.selector of a Service
	TargetPorts  []intstr.IntOrString // spec.ports[i].targetPort, with the default
	NoTargets    bool                 // no port has a targetPort, as in the output of proxyc snapshot -s
	Selects      bool                 // the Service is served, or will be, and has a selector
	Sliced       bool                 // the Service is served and has a selector, so that any cluster has an EndpointSlice of it
	FamilyPolicy string               // spec.ipFamilyPolicy
	Families     int                  // number of spec.ipFamilies, without the default
	NoNodePorts  bool                 // spec.allocateLoadBalancerNodePorts is false
	Distribution string               // spec.trafficDistribution
	NotReady     bool                 // spec.publishNotReadyAddresses
	Class        string               // spec.loadBalancerClass
	Kernel       string               // status.nodeInfo.kernelVersion
	Kubelet      string               // status.nodeInfo.kubeletVersion
	Taints       []corev1.Taint       // spec.taints of a Node
	ManagedBy    string               // label endpointslice.kubernetes.io/managed-by of an EndpointSlice
	Rejected     []Rejection
	Settings     map[string]any // what programs of a cluster read of a Service, but no rule depends on
	Order        int            // of the objects in the input
	Live         bool           // metadata contains what only the API server sets
	Reduced      bool           // the object has no Settings, since proxyc snapshot omitted them
}

// Rejection is a reason why the API server rejects an object.
type Rejection struct {
	diag.Diagnostic
	// OfType reports that it drops the field instead, if only the type of a Service changes.
	OfType bool
}

// DualStack reports whether a Service requests two families.
func (w *Written) DualStack() bool {
	return w.FamilyPolicy != "" && w.FamilyPolicy != string(corev1.IPFamilyPolicySingleStack)
}

// Written returns the written fields of all objects, by their names in
// diagnostics. With NoPositions, they are only Rejected.
func (r *Reader) Written() map[string]Written { return r.written }

func writtenMeta(m *metav1.ObjectMeta) Written {
	return Written{Ignore: m.Annotations[snapshot.AnnotationIgnore], Live: isLive(m), Reduced: isLive(m) && m.UID == ""}
}

// isLive reports whether metadata contains what only the API server sets. CoreDNS's manifest has
// resourceVersion 0, which no object in a cluster has.
func isLive(m *metav1.ObjectMeta) bool {
	return m.UID != "" || m.ResourceVersion != "" && m.ResourceVersion != "0" || !m.CreationTimestamp.IsZero()
}

func writtenService(s *corev1.Service, foreign bool) Written {
	w := writtenMeta(&s.ObjectMeta)
	w.Labels, w.Selector = s.Labels, s.Spec.Selector
	for _, p := range s.Spec.Ports {
		if p.TargetPort == (intstr.IntOrString{}) {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
		w.TargetPorts = append(w.TargetPorts, p.TargetPort)
	}
	w.Selects = len(w.Selector) > 0 && !foreign && s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone
	w.Sliced = w.Selects && s.Spec.ClusterIP != ""
	w.FamilyPolicy = string(ptr.Deref(s.Spec.IPFamilyPolicy, ""))
	w.NoNodePorts = !ptr.Deref(s.Spec.AllocateLoadBalancerNodePorts, true)
	w.Distribution, w.Class = ptr.Deref(s.Spec.TrafficDistribution, ""), ptr.Deref(s.Spec.LoadBalancerClass, "")
	w.NotReady, w.Settings = s.Spec.PublishNotReadyAddresses, snapshot.SettingsOf(s, foreign)
	return w
}

func writtenNode(n *corev1.Node) Written {
	w := writtenMeta(&n.ObjectMeta)
	w.Kubelet = n.Status.NodeInfo.KubeletVersion
	w.Kernel, w.Labels, w.Taints = n.Status.NodeInfo.KernelVersion, n.Labels, n.Spec.Taints
	return w
}

// An unmarshal decodes JSON as the API server does. It returns findings about
// input that the API server rejects with kubectl's default, fieldValidation
// Strict.
type unmarshal func(text []byte, v any) ([]finding, error)

// lenient reports duplicate keys, because the intended value is unknown and
// objects would be merged. It also reports fields that resemble a field of the
// API, because their content would be lost silently. Other unknown fields may
// belong to a newer API.
func lenient(text []byte, v any) ([]finding, error) {
	found, err := strictly(text, v)
	return slices.DeleteFunc(found, func(f finding) bool { return f.code == diag.FieldUnknown && f.hint == "" }), err
}

// strictly reports all fields that the API does not have and therefore drops.
func strictly(text []byte, v any) ([]finding, error) {
	refused, err := kjson.UnmarshalStrict(text, v)
	return findings(refused, v), err
}

// findings converts the errors of the strict decoder for the value v.
func findings(refused []error, v any) (out []finding) {
	for _, e := range refused {
		var field kjson.FieldError
		if !errors.As(e, &field) {
			continue
		}
		path := field.FieldPath()
		f := finding{severity: diag.Error, code: diag.FieldDuplicate, path: path, msg: "is duplicate: the object is ignored"}
		if strings.HasPrefix(e.Error(), "unknown") {
			f.severity, f.code, f.msg = diag.Warning, diag.FieldUnknown, "is not a field of the API, which drops it"
			parent, name := path[:max(strings.LastIndexByte(path, '.'), 0)], path[strings.LastIndexByte(path, '.')+1:]
			unset, all := keysAt(reflect.ValueOf(v), parent)
			f.hint = cmp.Or(diag.DidYouMean(name, unset), diag.DidYouMean(name, all))
		}
		out = append(out, f)
	}
	return out
}

// keysAt returns the JSON keys of the struct at a path below a value, and those of its fields that
// are not set. Both are nil if it is not a struct.
func keysAt(v reflect.Value, path string) (unset, all []string) {
	for _, step := range strings.Split(path, ".") {
		key, index, isElement := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		if key != "" {
			v = fieldAt(v, key)
		}
		if v = indirect(v); isElement && v.Kind() == reflect.Slice {
			if i, err := strconv.Atoi(index); err == nil && i < v.Len() {
				v = indirect(v.Index(i))
			}
		}
	}
	if v.Kind() != reflect.Struct {
		return nil, nil
	}
	for _, f := range reflect.VisibleFields(v.Type()) {
		if key := jsonKey(f); key != "" {
			all = append(all, key)
			if v.FieldByIndex(f.Index).IsZero() {
				unset = append(unset, key)
			}
		}
	}
	return unset, all
}

// indirect returns the value that a pointer points to.
func indirect(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v
}

// fieldAt returns the field with a JSON key; invalid if there is none.
func fieldAt(v reflect.Value, key string) reflect.Value {
	if v = indirect(v); v.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(v.Type()) {
			if jsonKey(f) == key {
				return v.FieldByIndex(f.Index)
			}
		}
	}
	return reflect.Value{}
}

func jsonKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

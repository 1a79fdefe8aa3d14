package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// A decoder decodes the JSON of one kind as the API server does, using read. namespace is that of an
// object without one, "" for default. The object has a name even in case of an error, if the name is
// readable.
type decoder func(text []byte, namespace string, read unmarshal) (object, []finding, error)

// readKinds are the kinds that a Snapshot uses, in each supported version.
var readKinds = [...]struct {
	group, version, kind string
	decode               decoder
}{
	{"", "v1", "Service", decodeService},
	{"", "v1", "Endpoints", decodeEndpoints},
	{"", "v1", "Node", decodeNode},
	{"discovery.k8s.io", "v1", "EndpointSlice", decodeSlice},
	{"discovery.k8s.io", "v1beta1", "EndpointSlice", decodeSliceV1beta1},
	{"networking.k8s.io", "v1", "ServiceCIDR", decodeServiceCIDR},
	{"networking.k8s.io", "v1beta1", "ServiceCIDR", decodeServiceCIDR}, // both versions have the same fields
}

// splitVersion splits an apiVersion; the core group is "".
func splitVersion(apiVersion string) (group, version string) {
	if group, version, ok := strings.Cut(apiVersion, "/"); ok {
		return group, version
	}
	return "", apiVersion
}

// decoderOf returns the decoder of a kind, or nil if a Snapshot does not use it.
func decoderOf(apiVersion, kind string) decoder {
	group, version := splitVersion(apiVersion)
	for i := range readKinds {
		if k := &readKinds[i]; k.kind == kind && k.group == group && k.version == version {
			return k.decode
		}
	}
	for _, k := range workloadGroups {
		if k.kind == kind && k.group == group && (version == "v1" && group != "extensions" || removal(apiVersion, kind) != nil) {
			return decodeWorkload(kind, k.pods)
		}
	}
	if namesBackends(group, kind) {
		return decodeBackends(kind)
	}
	return nil
}

// removed are the versions of these kinds that the API server has not served since a release 1.minor.
// A test compares it with the tables of Kubernetes.
var removed = [...]struct {
	apiVersion, kinds string
	minor             int
	instead           string
}{
	{"apps/v1beta1", "Deployment StatefulSet", 16, "apps/v1"},
	{"apps/v1beta2", "DaemonSet Deployment ReplicaSet StatefulSet", 16, "apps/v1"},
	{"extensions/v1beta1", "DaemonSet Deployment ReplicaSet", 16, "apps/v1"},
	{"extensions/v1beta1", "Ingress", 22, "networking.k8s.io/v1"},
	{"networking.k8s.io/v1beta1", "Ingress", 22, "networking.k8s.io/v1"},
	{"networking.k8s.io/v1beta1", "ServiceCIDR", 37, "networking.k8s.io/v1"},
	{"batch/v1beta1", "CronJob", 25, "batch/v1"},
	{"discovery.k8s.io/v1beta1", "EndpointSlice", 25, "discovery.k8s.io/v1"},
}

// removal returns the finding about a version that a release removed, or nil.
func removal(apiVersion, kind string) []finding {
	for _, r := range removed {
		if r.apiVersion == apiVersion && slices.Contains(strings.Fields(r.kinds), kind) {
			return []finding{{severity: diag.Warning, code: diag.VersionRemoved, path: "apiVersion", hint: "use " + r.instead,
				msg: fmt.Sprintf("%s was removed in Kubernetes 1.%d: the API server rejects the %s", apiVersion, r.minor, kind)}}
		}
	}
	return nil
}

// misspelt returns a finding about an object with a probably misspelt kind or
// version, or nil. Kinds of foreign groups may have the same names:
// serving.knative.dev also defines a Service.
func misspelt(apiVersion, kind string) *finding {
	var versions []string
	known := false // a group with a kind that is read; all of these are Kubernetes' own
	group, _ := splitVersion(apiVersion)
	for _, k := range readKinds {
		known = known || k.group == group
		if k.kind == kind {
			versions = append(versions, strings.TrimPrefix(k.group+"/"+k.version, "/"))
		}
	}
	for _, k := range workloadGroups {
		known = known || k.group == group
		if k.kind == kind && k.group != "extensions" {
			versions = append(versions, strings.TrimPrefix(k.group+"/v1", "/"))
		}
	}
	if len(versions) == 0 {
		meant := nearKind(group, kind)
		if meant == "" {
			return nil
		}
		return &finding{severity: diag.Error, code: diag.KindMisspelt, path: "kind", // the group is Kubernetes' own, so the API server rejects it
			msg: "is not a supported kind: the object is ignored: got " + diag.Quote(kind), hint: "did you mean " + meant + "?"}
	}
	f := finding{severity: diag.Warning, code: diag.KindMisspelt, path: "apiVersion",
		msg:  "must be " + strings.Join(versions, " or ") + ", got " + diag.Quote(apiVersion) + ": the object is ignored",
		hint: diag.DidYouMean(apiVersion, versions)}
	switch {
	case known:
		f.severity = diag.Error // the API server rejects it
	case f.hint == "":
		return nil
	}
	return &f
}

// nearKind returns the supported kind for which kind is a probable error: another
// case, a truncation, a plural or a misspelling.
func nearKind(group, kind string) string {
	if strings.HasSuffix(kind, "List") {
		return ""
	}
	var all []string
	for _, k := range readKinds {
		if k.group == group {
			all = append(all, k.kind)
		}
	}
	for _, k := range workloadGroups {
		if k.group == group {
			all = append(all, k.kind)
		}
	}
	if group == "networking.k8s.io" {
		all = append(all, "Ingress")
	}
	names := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "Pod" }) // too short for a distance
	for _, name := range all {
		if strings.EqualFold(kind, name+"s") || len(kind) > 3 && len(kind) < len(name) && strings.EqualFold(kind, name[:len(kind)]) {
			return name
		}
	}
	if group == "" {
		names = append(names, "List")
	}
	meant := diag.Nearest(kind, names)
	if len(kind) > len(meant)+2 { // a derived kind such as EndpointSliceMirror
		return ""
	}
	return meant
}

func decodeService(text []byte, namespace string, read unmarshal) (object, []finding, error) {
	var in corev1.Service
	strict, err := read(text, &in)
	targets := slices.ContainsFunc(in.Spec.Ports, func(p corev1.ServicePort) bool { return p.TargetPort != intstr.IntOrString{} })
	families := len(in.Spec.IPFamilies)
	defaultService(&in, namespace)
	svc := snapshot.FromService(&in)
	written := writtenService(&in, svc.ProxyName)
	written.NoTargets, written.Families = !targets, families
	return object{name: svc.Object, value: svc, written: written, invalid: svc.Invalid,
		has: func(s *snapshot.Snapshot) bool { return s.Service(svc.Name) != nil },
		put: func(s *snapshot.Snapshot) { s.SetService(svc) },
	}, append(strict, checkService(&in)...), err
}

func decodeSlice(text []byte, namespace string, read unmarshal) (object, []finding, error) {
	var in discoveryv1.EndpointSlice
	strict, err := read(text, &in)
	return finishSlice(&in, text, namespace, strict, err)
}

func decodeSliceV1beta1(text []byte, namespace string, read unmarshal) (object, []finding, error) {
	var in discoveryv1beta1.EndpointSlice
	strict, err := read(text, &in)
	return finishSlice(sliceFromV1beta1(&in), text, namespace, strict, err)
}

func finishSlice(in *discoveryv1.EndpointSlice, text []byte, namespace string, strict []finding, err error) (object, []finding, error) {
	defaultNamespace(&in.ObjectMeta, namespace)
	defaultEndpointPorts(in.Ports, text)
	slice, written := snapshot.FromEndpointSlice(in), writtenMeta(&in.ObjectMeta)
	written.ManagedBy = in.Labels[discoveryv1.LabelManagedBy]
	return object{name: slice.Object, value: slice, written: written, invalid: func() snapshot.Invalid { return snapshot.Invalid{Service: slice.Service} },
		has: func(s *snapshot.Snapshot) bool { return s.Slice(slice.Name) != nil },
		put: func(s *snapshot.Snapshot) { s.SetSlice(slice) },
	}, append(strict, checkSlice(in)...), err
}

func decodeEndpoints(text []byte, namespace string, read unmarshal) (object, []finding, error) {
	var in corev1.Endpoints
	strict, err := read(text, &in)
	defaultNamespace(&in.ObjectMeta, namespace)
	name, slices := snapshot.NameOf(&in.ObjectMeta), snapshot.FromEndpoints(&in)
	return object{name: snapshot.ObjectName("Endpoints", snapshot.NameOf(&in.ObjectMeta)), value: slices, written: writtenMeta(&in.ObjectMeta), invalid: func() snapshot.Invalid { return snapshot.Invalid{Service: name} },
		has: func(s *snapshot.Snapshot) bool { return s.HasEndpoints(name) },
		put: func(s *snapshot.Snapshot) { s.SetEndpoints(name, slices) },
	}, append(strict, checkEndpoints(&in)...), err
}

func decodeNode(text []byte, _ string, read unmarshal) (object, []finding, error) {
	var in corev1.Node
	strict, err := read(text, &in)
	defaultNode(&in)
	node := snapshot.FromNode(&in)
	return object{name: snapshot.ObjectName("Node", snapshot.NameOf(&in.ObjectMeta)), value: node, written: writtenNode(&in),
		has: func(s *snapshot.Snapshot) bool { return s.Node(node.Name) != nil },
		put: func(s *snapshot.Snapshot) { s.SetNode(node) },
	}, append(strict, checkNode(&in)...), err
}

func decodeServiceCIDR(text []byte, _ string, read unmarshal) (object, []finding, error) {
	var in networkingv1.ServiceCIDR
	strict, err := read(text, &in)
	in.Namespace = ""
	cidr := snapshot.FromServiceCIDR(&in)
	return object{name: snapshot.ObjectName("ServiceCIDR", snapshot.NameOf(&in.ObjectMeta)), value: cidr, written: writtenMeta(&in.ObjectMeta),
		has: func(s *snapshot.Snapshot) bool { return s.ServiceCIDR(cidr.Name) != nil },
		put: func(s *snapshot.Snapshot) { s.SetServiceCIDR(cidr) },
	}, append(strict, checkServiceCIDR(&in)...), err
}

// explain splits an error of the JSON decoder into the path of the field, if
// known, and the message.
func explain(text []byte, err error) (path, msg string) {
	var when *time.ParseError
	if errors.As(err, &when) {
		isIt := func(t *token) bool { return t.String() == when.Value || strconv.Quote(t.String()) == when.Value }
		return pathOf(text, isIt), "must be a time such as 2006-01-02T15:04:05Z, got " + diag.Quote(strings.Trim(when.Value, `"`))
	}
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return "", err.Error()
	}
	msg = "must be " + typeName(wrong.Type) + ", got " + wrong.Value
	wrong.Field = embedded.ReplaceAllString(wrong.Field, "")
	path = pathOf(text, func(t *token) bool { return t.reader.InputOffset() >= wrong.Offset })
	if !strings.HasPrefix(listIndex.ReplaceAllString(path, ""), wrong.Field) || wrong.Field == "" {
		// A type with its own decoder counts offsets from its own start.
		return cmp.Or(pathOf(text, func(t *token) bool {
			return isKind(t, wrong.Value) && (wrong.Field == "" || listIndex.ReplaceAllString(t.path(), "") == wrong.Field)
		}), wrong.Field), msg
	}
	return path, msg
}

// embedded matches the name of an embedded type in a path of the JSON decoder.
var embedded = regexp.MustCompile(`\b[A-Z]\w*\.`)

// isKind reports whether a value has a type in the JSON decoder's notation, such
// as "bool" or "number 1.5".
func isKind(t *token, kind string) bool {
	kind, _, _ = strings.Cut(kind, " ")
	return kind == map[jsontext.Kind]string{'t': "bool", 'f': "bool", '"': "string", '0': "number", '{': "object", '[': "array"}[t.Kind()]
}

var listIndex = regexp.MustCompile(`\[\d+\]`)

// typeName returns the JSON type for a Go type.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return t.String()
}

// sliceFromV1beta1 converts a slice to v1. Before Kubernetes 1.20 the topology of
// an endpoint named its node, under the host name label. The zone there never
// affected the choice of endpoints.
func sliceFromV1beta1(in *discoveryv1beta1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  in.ObjectMeta,
		AddressType: discoveryv1.AddressType(in.AddressType),
		Ports:       make([]discoveryv1.EndpointPort, len(in.Ports)),
		Endpoints:   make([]discoveryv1.Endpoint, len(in.Endpoints)),
	}
	for i, p := range in.Ports {
		out.Ports[i] = discoveryv1.EndpointPort(p)
	}
	for i, e := range in.Endpoints {
		out.Endpoints[i] = discoveryv1.Endpoint{
			Addresses:  e.Addresses,
			Conditions: discoveryv1.EndpointConditions(e.Conditions),
			NodeName:   e.NodeName,
			TargetRef:  e.TargetRef,
		}
		if host, ok := e.Topology[corev1.LabelHostname]; ok && e.NodeName == nil {
			out.Endpoints[i].NodeName = &host
		}
		if e.Hints != nil {
			out.Endpoints[i].Hints = hintsFromV1beta1(e.Hints)
		}
	}
	return out
}

func hintsFromV1beta1(in *discoveryv1beta1.EndpointHints) *discoveryv1.EndpointHints {
	out := &discoveryv1.EndpointHints{}
	for _, z := range in.ForZones {
		out.ForZones = append(out.ForZones, discoveryv1.ForZone(z))
	}
	for _, n := range in.ForNodes {
		out.ForNodes = append(out.ForNodes, discoveryv1.ForNode(n))
	}
	return out
}

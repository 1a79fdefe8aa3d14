package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// namesBackends reports whether a kind refers to Services by fields that decodeBackends finds.
func namesBackends(group, kind string) bool {
	return kind == "Ingress" && (group == "networking.k8s.io" || group == "extensions") ||
		group == "gateway.networking.k8s.io" && strings.HasSuffix(kind, "Route")
}

// decodeBackends returns the decoder of a kind for which namesBackends is true.
func decodeBackends(kind string) decoder {
	return func(text []byte, namespace string, _ unmarshal) (object, []finding, error) {
		var in struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     any               `json:"spec"`
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &in); err != nil {
			return object{has: func(*snapshot.Snapshot) bool { return true }}, nil, err
		}
		defaultNamespace(&in.Metadata, namespace)
		name := snapshot.ObjectName(kind, snapshot.NameOf(&in.Metadata))
		var all []snapshot.Backend
		var found []finding
		find(in.Spec, "spec", func(path string, fields map[string]any) {
			b, got := backendOf(path, fields, in.Metadata.Namespace)
			b.Object, b.Path = name, path+b.Path
			if b.Service.Name != "" && b.Name == "" && got == nil {
				found = append(found, finding{severity: diag.Warning, code: diag.BackendPort, path: b.Path, msg: "must be set for a Service: the API server rejects the " + kind})
			}
			if text, is := got.(string); is && b.Service.Name != "" {
				f := finding{severity: diag.Warning, code: diag.FieldType, path: b.Path, msg: "must be a whole number, got " + diag.Quote(text) + ": the API server rejects the " + kind}
				if kind == "Ingress" {
					if f.path += ".number"; number(numeric(text)) == 0 {
						f.hint = "a named port is in field name"
					}
				}
				found, b.Port = append(found, f), number(numeric(text))
			}
			if b.Service.Name != "" && (b.Port != 0 || b.Name != "") && b.Name != "use-annotation" { // the AWS controller's word for its annotation
				all = append(all, b)
			}
		})
		return object{name: name, written: writtenMeta(&in.Metadata),
			has: func(s *snapshot.Snapshot) bool { return s.HasBackends(name) },
			put: func(s *snapshot.Snapshot) { s.SetBackends(name, all) },
		}, found, nil
	}
}

// find calls visit for each mapping in a value, with its path.
func find(v any, path string, visit func(path string, fields map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		visit(path, v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			find(v[key], path+"."+key, visit)
		}
	case []any:
		for i, item := range v {
			find(item, fmt.Sprintf("%s[%d]", path, i), visit)
		}
	}
}

// backendOf returns the reference in a backend of an Ingress, {service: {name, port: {number, name}}},
// or in a backendRef of a route, {kind, namespace, name, port}; without a name if it is none. path is
// that of the fields. got is the value of the port's number.
func backendOf(path string, fields map[string]any, namespace string) (b snapshot.Backend, got any) {
	if service, is := fields["service"].(map[string]any); is {
		port, _ := service["port"].(map[string]any)
		b.Service = ir.Name{Namespace: namespace, Name: text(service["name"])}
		b.Port, b.Name, b.Path = number(port["number"]), text(port["name"]), ".service.port"
		return b, port["number"]
	}
	if key, _, _ := strings.Cut(path[strings.LastIndexByte(path, '.')+1:], "["); key != "backendRefs" && key != "backendRef" {
		return b, nil
	}
	if kind := text(fields["kind"]); kind != "" && kind != "Service" || text(fields["group"]) != "" {
		return b, nil
	}
	if of := text(fields["namespace"]); of != "" {
		namespace = of
	}
	b.Service, b.Port, b.Path = ir.Name{Namespace: namespace, Name: text(fields["name"])}, number(fields["port"]), ".port"
	return b, fields["port"]
}

func text(v any) string { s, _ := v.(string); return s }

func number(v any) int32 { n, _ := v.(int64); return int32(n) }

// numeric returns the number that a text contains; 0 for other texts.
func numeric(text string) int64 { n, _ := strconv.ParseInt(text, 10, 32); return n }

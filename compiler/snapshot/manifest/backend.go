package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

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
	return func(text []byte, _ unmarshal) (object, []finding, error) {
		var in struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     any               `json:"spec"`
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &in); err != nil {
			return object{has: func(*snapshot.Snapshot) bool { return true }}, nil, err
		}
		defaultNamespace(&in.Metadata)
		name := snapshot.ObjectName(kind, snapshot.NameOf(&in.Metadata))
		var all []snapshot.Backend
		find(in.Spec, "spec", func(path string, fields map[string]any) {
			if b, ok := backendOf(fields, in.Metadata.Namespace); ok {
				b.Object, b.Path = name, path+b.Path
				all = append(all, b)
			}
		})
		return object{name: name, written: writtenMeta(&in.Metadata),
			has: func(s *snapshot.Snapshot) bool { return s.HasBackends(name) },
			put: func(s *snapshot.Snapshot) { s.SetBackends(name, all) },
		}, nil, nil
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
// or in a backendRef of a route, {kind, namespace, name, port}.
func backendOf(fields map[string]any, namespace string) (b snapshot.Backend, ok bool) {
	if service, is := fields["service"].(map[string]any); is {
		port, _ := service["port"].(map[string]any)
		b.Service = ir.Name{Namespace: namespace, Name: text(service["name"])}
		b.Port, b.Name, b.Path = number(port["number"]), text(port["name"]), ".service.port"
		return b, b.Service.Name != "" && (b.Port != 0 || b.Name != "")
	}
	if kind := text(fields["kind"]); kind != "" && kind != "Service" || text(fields["group"]) != "" {
		return b, false
	}
	if of := text(fields["namespace"]); of != "" {
		namespace = of
	}
	b.Service, b.Port, b.Path = ir.Name{Namespace: namespace, Name: text(fields["name"])}, number(fields["port"]), ".port"
	return b, b.Service.Name != "" && b.Port != 0
}

func text(v any) string { s, _ := v.(string); return s }

func number(v any) int32 { n, _ := v.(int64); return int32(n) }

package types

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/compiler/config"
)

// removedFields are fields of older releases that proxyc still reads.
var removedFields = []string{"conntrack.max", "resourceContainer", "udpIdleTimeout"}

// TestConfigTypes checks that proxyc has every field of the newest KubeProxyConfiguration, with
// the same kind.
func TestConfigTypes(t *testing.T) {
	want, got := map[string]string{}, map[string]string{}
	fields(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "", want)
	fields(reflect.TypeFor[config.Config](), "", got)
	for _, path := range removedFields {
		if _, ok := got[path]; !ok {
			t.Errorf("%s: not a field of proxyc", path)
		}
		delete(got, path)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields and their kinds (-kube-proxy +proxyc):\n%s", diff)
	}
	if len(want) < 60 {
		t.Errorf("only %d fields found: %v", len(want), slices.Sorted(maps.Keys(want)))
	}
}

// fields lists the path and the kind of each value in a type.
func fields(t reflect.Type, path string, out map[string]string) {
	switch {
	case t.Kind() == reflect.Pointer:
		fields(t.Elem(), path, out)
		out[path] = "optional " + out[path]
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		fields(t.Elem(), path+"[]", out)
	case t.Kind() == reflect.Struct && !writesItself(t):
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "":
				fields(f.Type, path, out)
			case path == "":
				fields(f.Type, name, out)
			default:
				fields(f.Type, path+"."+name, out)
			}
		}
	default:
		out[path] = kind(t)
	}
}

func writesItself(t reflect.Type) bool { return t.Implements(reflect.TypeFor[json.Marshaler]()) }

// kind returns the JSON type of a value, so that named types do not matter.
func kind(t reflect.Type) string {
	switch {
	case strings.HasSuffix(t.Name(), "Duration"), t.Name() == "FlushFrequency":
		return "duration"
	case strings.HasPrefix(t.Name(), "Quantity"):
		return "quantity"
	case t.Kind() == reflect.Slice:
		return "list of " + kind(t.Elem())
	case t.Kind() == reflect.Map:
		return "map of " + kind(t.Elem())
	}
	return t.Kind().String()
}

// TestConfigIsExchanged checks that Kubernetes' types read the defaults that proxyc's types
// write, and vice versa.
func TestConfigIsExchanged(t *testing.T) {
	ours := config.Default()
	config.Complete(ours)
	written, err := config.WriteConfig(ours)
	if err != nil {
		t.Fatal(err)
	}
	var theirs v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict(written, &theirs); err != nil {
		t.Fatalf("%v in\n%s", err, written)
	}
	back, err := yaml.Marshal(&theirs)
	if err != nil {
		t.Fatal(err)
	}
	got, diags := config.Parse("theirs.yaml", back, true)
	if len(diags) > 0 {
		t.Fatalf("%v in\n%s", diags, back)
	}
	got.FeatureGates = ours.FeatureGates // an empty map is not written
	if diff := cmp.Diff(ours, got); diff != "" {
		t.Errorf("(-written +through Kubernetes' types):\n%s", diff)
	}
}

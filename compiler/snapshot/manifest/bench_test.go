package manifest

import (
	"encoding/json"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// bigList returns a List of 10,000 Services with 10 endpoints each.
func bigList(b *testing.B) []byte {
	b.Helper()
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": cluster(10000, 10, 100)})
	if err != nil {
		b.Fatal(err)
	}
	return data
}

func BenchmarkDecodeJSON(b *testing.B) { benchmarkDecode(b, bigList(b)) }

func BenchmarkDecodeYAML(b *testing.B) {
	data, err := yaml.JSONToYAML(bigList(b))
	if err != nil {
		b.Fatal(err)
	}
	benchmarkDecode(b, data)
}

func benchmarkDecode(b *testing.B, data []byte) {
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		s := snapshot.New()
		if list := Decode(s, "big", data); len(list) > 0 {
			b.Fatal(list[0])
		}
		if got, _, _ := s.Count(); got != 10000 {
			b.Fatalf("%d Services", got)
		}
	}
}

package manifest

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// An object is indexed once for all findings about it, and a document is parsed
// once for all its objects.
func TestLocateOnce(t *testing.T) {
	const n = 200
	items := make([]string, n)
	for i := range items {
		items[i] = "{apiVersion: v1, kind: Node, metadata: {name: m-" + string(rune('a'+i%26)) + strings.Repeat("x", i/26) + "}}"
	}
	var r Reader
	s := snapshot.New()
	if diags := r.Decode(s, "f", []byte("{apiVersion: v1, kind: List, items: ["+strings.Join(items, ",\n")+"]}\n"), false); len(diags) > 0 {
		t.Fatal(diags)
	}
	var list diag.List
	for _, node := range s.Nodes() {
		list.Add(diag.Diagnostic{Object: "Node " + node.Name, Path: "metadata.name"}, diag.Diagnostic{Object: "Node " + node.Name, Path: "spec"})
	}
	r.Locate(list)
	if len(list) != 2*n || r.parsed != 1 || r.objects != n {
		t.Errorf("%d findings: %d documents parsed, %d objects indexed; want 1 and %d", len(list), r.parsed, r.objects, n)
	}
	if last := list[0]; last.Line != 1 || last.Column != 78 {
		t.Errorf("got %+v", last)
	}
}

// Similar findings are counted while the file is decoded. The result does not
// grow with their number, and only reported ones are located.
func TestFindingsAreFew(t *testing.T) {
	for name, join := range map[string]func(n int) string{
		"documents": func(n int) string { return strings.Repeat("---\n"+strings.Replace(svcB, "name: b", "name: B", 1), n) },
		"JSON List": func(n int) string {
			return `{"apiVersion":"v1","kind":"List","items":[` + strings.Repeat(strings.Replace(jsonA, `"a"`, `"B"`, 1)+",\n", n) + jsonN + "]}"
		},
		"one object": func(n int) string {
			return svcB + "  ports:\n" + strings.Repeat("  - {name: B, port: 80}\n", n)
		},
		"no objects": func(n int) string { return strings.Repeat("---\na: b\n", n) },
	} {
		const n = 3 * batch
		r := Reader{MaxSimilar: 5}
		list := r.Decode(snapshot.New(), "f", []byte(join(n)), false)
		if len(list) != 1 || list[0].More != n-1 || list[0].Column == 0 {
			t.Errorf("%s: %d findings, the first one: %+v", name, len(list), list[:1])
		}
		if r.objects > 5 || r.parsed > 5 {
			t.Errorf("%s: %d objects and %d documents were looked at for places", name, r.objects, r.parsed)
		}
	}
}

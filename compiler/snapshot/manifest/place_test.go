package manifest

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// A finding about a field has the field's position, in each file format.
func TestLocate(t *testing.T) {
	const service = `apiVersion: v1
kind: Service
metadata:
  name: b
  labels: {example.com/a.b: c}
spec:
  clusterIP: 10.0.0.2
  externalIPs:
  - 192.0.2.1
  -   192.0.2.2
  ports:
  - name: http
    port: 80
  - port: 81
    name: more
`
	const object = `{"apiVersion":"v1","kind":"Service",
  "metadata":{"name":"b","labels":{"example.com/a.b":"c"}},
  "spec":{"clusterIP":"10.0.0.2","externalIPs":["192.0.2.1",  "192.0.2.2"],
    "ports":[{"name":"http","port":80},
      {"port":81,"name":"more"}]}}`
	item := strings.ReplaceAll(strings.TrimSuffix(service, "\n"), "\n", "\n  ")
	type want struct{ path, at string }
	yamlWants := []want{
		{"spec.ports[1].port", "14:5"}, {"spec.ports[0].port", "13:5"}, {"spec.ports[1]", "14:5"}, {"spec.externalIPs[1]", "10:7"},
		{"spec.clusterIPs[0]", "7:3"}, {"spec.clusterIPs[1]", "6:1"}, {"spec.ports[7].port", "11:3"}, {"status.loadBalancer.ingress[0].ip", "1:1"},
		{"metadata.labels.example.com/a.b", "5:12"}, {"spec", "6:1"}, {"", "1:1"},
	}
	jsonWants := []want{
		{"spec.ports[1].port", "5:8"}, {"spec.ports[0].port", "4:29"}, {"spec.ports[1]", "5:7"}, {"spec.externalIPs[1]", "3:63"},
		{"spec.clusterIPs[0]", "3:11"}, {"spec.clusterIPs[1]", "3:3"}, {"spec.ports[7].port", "4:5"}, {"status.loadBalancer.ingress[0].ip", "1:1"},
		{"metadata.labels.example.com/a.b", "2:36"}, {"spec", "3:3"}, {"", "1:1"},
	}
	cases := []struct {
		name, in string
		wants    []want
	}{
		{"YAML", service, yamlWants},
		{"JSON", object, jsonWants},
		{"YAML document after others", nodeN + "---\n" + service, []want{{"spec.ports[1].port", "19:5"}, {"", "6:1"}}},
		{"YAML List", "apiVersion: v1\nitems:\n- " + strings.ReplaceAll(nodeN, "\n", "\n  ") + "\n- " + item + "\nkind: List\n", []want{{"spec.ports[1].port", "21:7"}, {"", "8:3"}}},
		{"YAML List with an anchor", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: &m {name: b}\n- apiVersion: v1\n  kind: Service\n  metadata: *m\n  spec:\n    clusterIP: None\n",
			[]want{{"spec.clusterIP", "11:5"}, {"metadata.name", "9:3"}, {"", "7:3"}}},
		{"YAML List with merged mappings", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: &m {name: b, uid: u1}\n- apiVersion: v1\n  kind: Service\n  metadata:\n    uid: u2\n    <<: [*m]\n  spec:\n    clusterIP: None\n",
			[]want{{"metadata.name", "11:5"}, {"metadata.uid", "10:5"}, {"spec.clusterIP", "13:5"}}},
		{"flow YAML on the line of the separator", "--- {apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: None}}\n", []want{{"metadata.name", "1:48"}}},
		{"JSON List", `{"kind":"List","items":[` + jsonN + `,` + object + `]}`, []want{{"spec.ports[1].port", "5:8"}, {"", "1:84"}, {"kind", "1:103"}}},
		{"JSON array", "[\n " + object + "]", []want{{"spec.ports[1].port", "6:8"}, {"", "2:2"}}},
		{"JSON in YAML flow", "- " + strings.ReplaceAll(object, "\n", "\n ") + "\n", []want{{"spec.ports[1].port", "5:9"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var r Reader
			if diags := r.Decode(snapshot.New(), "f", []byte(c.in), false); len(diags) > 0 {
				t.Fatal(diags)
			}
			for _, w := range c.wants {
				l := diag.List{{Severity: diag.Error, Object: "Service default/b", Path: w.path, Msg: "x"}}
				r.Locate(l)
				text := "f:" + w.at + ": Service default/b: "
				if w.path != "" {
					text += w.path + ": "
				}
				if got := l[0].String(); got != text+"x" {
					t.Errorf("%s: got %s, want %s", w.path, got, w.at)
				}
			}
		})
	}
}

// Of several objects with one name the last one is used, and has the position.
// Objects that are not in the files have none.
func TestLocateLast(t *testing.T) {
	var r Reader
	s := snapshot.New()
	r.Decode(s, "a", []byte(svcB), false)
	r.Decode(s, "b", []byte("\n"+svcB), false)
	l := diag.List{{Object: "Service default/b", Path: "spec"}, {Object: "Service default/c"}, {File: "x", Object: "Service default/b"}, {}}
	r.Locate(l)
	if l[0].File != "b" || l[0].Line != 6 || l[1].File != "" || l[2].Line != 0 || l[3].File != "" {
		t.Errorf("got %+v", l)
	}
}

// A directory may contain files that are not Kubernetes objects.
func TestDecodeForeign(t *testing.T) {
	for in, want := range map[string]int{
		`{"status":"success"}`:           0,
		"a: 1\n---\nb: 2\n":              0,
		"[1, 2]":                         0,
		svcA + "---\na: 1\n":             1,
		"{\"a\":":                        0,
		`{"apiVersion":"v1","kind":`:     1,
		secret + "---\n" + "kind: Pod\n": 1,
	} {
		var r Reader
		if diags := r.Decode(snapshot.New(), "f", []byte(in), true); len(diags) != want {
			t.Errorf("%q: got %v, want %d findings", in, diags, want)
		}
		if diags := Decode(snapshot.New(), "f", []byte(in)); len(diags) == 0 {
			t.Errorf("%q: must be wrong where it is named", in)
		}
	}
}

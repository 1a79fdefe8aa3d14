package manifest

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

var everyCut = flag.Bool("every-cut", false, "cut the files of testdata at every byte, and print what is found")

// snapshots returns all files of objects in testdata by name, and a cluster as
// printed by kubectl document by document.
func snapshots(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{"documents of an API server": []byte(served)}
	err := filepath.WalkDir("../../../testdata", func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		switch filepath.Ext(path) {
		case ".txtar":
			for _, f := range txtar.Parse(data).Files {
				if strings.Contains(filepath.ToSlash(path), "/compile/") && strings.HasPrefix(f.Name, "snapshot") {
					out[path+": "+f.Name] = f.Data
				}
			}
		case ".yaml", ".yml", ".json":
			out[path] = data
		}
		return err
	})
	if err != nil || len(out) < 50 {
		t.Fatalf("%d files: %v", len(out), err)
	}
	demo, err := os.ReadFile("../../../cmd/proxyc/demo/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out["demo"] = demo
	return out
}

// reported decodes a file as the daemon does. It reports whether the file is refused,
// as truncated or as empty.
func reported(data []byte) (s *snapshot.Snapshot, refused bool) {
	s = snapshot.New()
	r := Reader{MaxSimilar: 5, Truncated: diag.Error, NoPositions: true}
	for _, d := range r.Decode(s, "f", data, false) {
		refused = refused || d.Severity == diag.Error && d.Object == ""
	}
	services, _, nodes := s.Count()
	return s, refused || services+nodes == 0
}

// No complete file is reported as truncated.
func TestWholeFilesAreNotCut(t *testing.T) {
	for name, data := range snapshots(t) {
		r := Reader{Truncated: diag.Error, NoPositions: true}
		for _, d := range r.Decode(snapshot.New(), name, data, true) {
			if strings.Contains(d.Msg, "cut off") {
				t.Error(d)
			}
		}
	}
}

// A truncation is reported inside a line, and after a line if the object then
// lacks a required field. It is not detectable between objects, or between
// optional fields of an object.
func TestCutsAreRefused(t *testing.T) {
	files := snapshots(t)
	if !*everyCut {
		files = map[string][]byte{"demo": files["demo"], "documents of an API server": files["documents of an API server"]}
	}
	cuts, silent, atLines := 0, 0, 0
	for name, data := range files {
		whole, refused := reported(data)
		if refused || !bytes.Contains(data, []byte("\nkind: ")) {
			continue // refused already, or JSON
		}
		step := 1
		if !*everyCut {
			step = 31
		}
		check := func(n int) {
			got, refused := reported(data[:n])
			if refused || cmp.Equal(whole, got, equate, cmp.AllowUnexported(snapshot.Snapshot{})) {
				cuts++
				return // reported, or nothing is lost
			}
			cuts++
			silent++
			if n == 0 || data[n-1] == '\n' {
				atLines++
			} else if !bytes.HasPrefix([]byte("---"), data[bytes.LastIndexByte(data[:n], '\n')+1:n]) {
				t.Errorf("%s, cut at %d: taken in silence: %q", name, n, data[max(0, n-30):n])
			}
		}
		for n := 1; n < len(data); n += step {
			check(n)
		}
	}
	t.Logf("%d of %d cuts are taken in silence, %d of them at the end of a line", silent, cuts, atLines)
	if silent*20 > cuts {
		t.Errorf("%d of %d cuts are taken in silence", silent, cuts)
	}
}

// An object from an API server always has its last field, in each document.
func TestCutDocumentsOfAnAPIServer(t *testing.T) {
	last := strings.LastIndex(served, "---\n") + len("---\n")
	for n := last; n < len(served); n++ {
		_, refused := reported([]byte(served[:n]))
		rest := served[n:]
		complete := strings.HasPrefix(rest, "- name: https") || strings.HasPrefix(rest, "---")
		if !refused && n > last && !complete {
			t.Errorf("cut before %.30q: taken in silence", rest)
		}
	}
}

// served are objects as printed by kubectl get NAME -o yaml.
const served = `apiVersion: v1
kind: Service
metadata:
  creationTimestamp: "2026-01-01T00:00:00Z"
  name: web
  namespace: shop
  resourceVersion: "7"
  uid: 6f1b2c3d-0000-4000-8000-000000000001
spec:
  clusterIP: 10.96.0.10
  clusterIPs:
  - 10.96.0.10
  ports:
  - name: http
    port: 80
    protocol: TCP
    targetPort: 8080
  sessionAffinity: None
  type: ClusterIP
status:
  loadBalancer: {}
---
addressType: IPv4
apiVersion: discovery.k8s.io/v1
endpoints:
- addresses:
  - 10.244.1.10
  conditions:
    ready: true
    serving: true
    terminating: false
  nodeName: node1
kind: EndpointSlice
metadata:
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels:
    kubernetes.io/service-name: web
  name: web-abcde
  namespace: shop
  resourceVersion: "9"
  uid: 6f1b2c3d-0000-4000-8000-000000000002
ports:
- name: http
  port: 8080
  protocol: TCP
- name: https
  port: 8443
  protocol: TCP
`

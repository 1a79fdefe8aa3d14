package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// proxycRun runs a verb on the node of the environment and returns its standard output.
func (s *testEnv) proxycRun(args ...string) string {
	s.t.Helper()
	cmd := s.Command(s.t.Context(), proxyc, args...)
	out, err := s.Run(cmd)
	if err != nil {
		s.t.Fatalf("proxyc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestRecordedRun checks that a recording of a changing cluster ends in the state of the cluster,
// that a snapshot equals the API's objects, and that each replayed change is proved.
func TestRecordedRun(t *testing.T) {
	parallel(t)
	const services = 600 // more than a page
	changes := applytest.Of(37, 300)
	s := newTestEnv(t, "nftables")
	kubeconfig, err := s.gate.Kubeconfig(s.dir, kube.ProxycUser)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(s.dir, name) }
	c := newChurn(s, 1, 0, services)
	recorder, err := kube.StartProxy(s.Namespace, s.dir, "record", proxyc, "record", "--kubeconfig", kubeconfig, "-o", file("run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { recorder.Kill() })
	has := func(text string) func() error {
		return func() error {
			data, err := os.ReadFile(file("run.jsonl"))
			if err == nil && !bytes.Contains(data, []byte(text)) {
				err = fmt.Errorf("no %s: %s", text, recorder.Tail())
			}
			return err
		}
	}
	eventually(t, time.Minute, "all is recorded that there was at first", has(`"type":"SYNCED"`))
	for range changes {
		if err := c.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last := numbered{n: 9000, pods: []string{"pod1a"}}
	s.set(last)
	for _, kind := range []string{"Service", "EndpointSlice"} {
		eventually(t, time.Minute, "the last change is recorded", func() error {
			data, err := os.ReadFile(file("run.jsonl"))
			for line := range bytes.Lines(data) {
				if bytes.Contains(line, []byte(`"kind":"`+kind+`"`)) && bytes.Contains(line, []byte(`"name":"`+last.name()+`"`)) {
					return err
				}
			}
			return fmt.Errorf("no %s %s: %s", kind, last.name(), recorder.Tail())
		})
	}
	if _, err := recorder.Stop(); err != nil {
		t.Errorf("record: %v\n%s", err, recorder.Tail())
	}

	s.proxycRun("snapshot", "--kubeconfig", kubeconfig, "-o", file("snapshot.json.gz"))
	if err := s.cluster.Snapshot(t.Context(), file("api.json")); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--hostname-override", "node1", "--cluster-cidr", "10.244.0.0/16", "--proxy-mode", "nftables"}
	compiled := func(name string) string {
		t.Helper()
		return s.proxycRun(append([]string{"compile", "-o", "ir-json", "-s", file(name)}, flags...)...)
	}
	out := s.proxycRun(append([]string{"replay", file("run.jsonl"), "-o", "stat", "--prove", "--snapshot-out", file("end.json")}, flags...)...)
	want := compiled("api.json")
	for _, name := range []string{"snapshot.json.gz", "end.json"} {
		if compiled(name) != want {
			t.Errorf("%s: is not compiled to what the API's objects are", name)
		}
	}
	data, err := os.ReadFile(file("run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	_, behind, _ := bytes.Cut(data, []byte(`"type":"SYNCED"`))
	t.Logf("%d changes recorded, of which %d change flows", bytes.Count(behind, []byte("\n"))-1, strings.Count(out, "run.jsonl:"))
	if n := strings.Count(out, "run.jsonl:"); n < changes/2 {
		t.Errorf("%d changes of flows, want most of %d", n, changes)
	}
	ready := kube.Object{"conditions": []any{kube.Object{"type": "Ready", "status": "True"}}}
	s.send(kube.Object{"apiVersion": "v1", "kind": "Pod", "metadata": kube.Object{"name": "proxyc-1", "namespace": "kube-system", "labels": kube.Object{"k8s-app": "proxyc"}},
		"spec": kube.Object{"nodeName": "node9", "containers": []any{kube.Object{"name": "proxyc", "image": "proxyc"}}}, "status": ready},
		kube.Object{"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": "node9"}, "status": ready})
	admin, err := s.gate.Kubeconfig(s.dir, kube.Admin)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Run(s.Command(t.Context(), proxyc, "status", "--kubeconfig", admin))
	if !regexp.MustCompile(`\nnode1 +no .* kubelet has reported no state\nnode9 +yes .* the Pod is ready\n`).Match(nodes) {
		t.Errorf("%v\n%s", err, nodes)
	}
}

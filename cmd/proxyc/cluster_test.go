package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

const kubeconfigForm = `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"a","cluster":{"server":%q}}],"contexts":[{"name":"prod","context":{"cluster":"a"}}],"current-context":"prod"}`

// Every offline verb reads a cluster from its API server, once, as from a snapshot of it.
func TestContext(t *testing.T) {
	const dir = "../../testdata/review/new"
	snap := snapshot.New()
	for _, name := range []string{"endpoints.yaml", "nodes.yaml", "services.yaml"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diags := manifest.Decode(snap, name, text); len(diags) > 0 {
			t.Fatal(diags)
		}
	}
	objects := snap.Document().Objects()
	services := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, o := range objects.Services {
		services.Items = append(services.Items, *o)
	}
	endpoints := discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, o := range objects.Slices {
		endpoints.Items = append(endpoints.Items, *o)
	}
	nodes := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, o := range objects.Nodes {
		nodes.Items = append(nodes.Items, *o)
	}
	lists, asked := map[string]any{"services": services, "endpointslices": endpoints, "nodes": nodes}, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[path.Base(r.URL.Path)]++
		list, ok := lists[path.Base(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(list)
	}))
	defer server.Close()
	here := t.TempDir()
	kubeconfig, file := filepath.Join(here, "kubeconfig"), filepath.Join(here, "cluster.json")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, kubeconfigForm, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	proxyc := func(args ...string) (stdout, stderr string, code int) {
		var out, errs bytes.Buffer
		e := osEnv()
		e.args, e.stdout, e.stderr, e.terminal = args, &out, &errs, false
		code = run(e)
		return out.String(), errs.String(), code
	}
	if _, errs, code := proxyc("snapshot", "--kubeconfig", kubeconfig, "-o", file); code != exitDone {
		t.Fatal(errs)
	}
	for _, verb := range []string{
		"compile --node node1 -o ir",
		"lint --node node1 --mode ipvs",
		"trace --node node1 --from 192.0.2.200 --to 203.0.113.10:443",
		"explain --node node1 203.0.113.10",
		"diff --all-nodes --new-mode ipvs -o stat",
		"prove --node node2 ir mode:nftables",
		"migrate --all-nodes --to ipvs",
		"report --node node3 -o markdown",
	} {
		args := append(strings.Fields(verb), "-c", "../../testdata/review/config.yaml")
		want, _, wantCode := proxyc(append(args, "-s", file)...)
		for _, from := range [][]string{{"--kubeconfig", kubeconfig}, {"--kubeconfig", kubeconfig, "--context", "prod"}} {
			clear(asked)
			got, errs, code := proxyc(append(args, from...)...)
			// Files have positions and names.
			normal := func(text string) string {
				text = strings.NewReplacer(file, "cluster.json", "report: prod", "report").Replace(text)
				text = regexp.MustCompile("`cluster.json:\\d+`|  # cluster.json:\\d+:\\d+|cluster.json:\\d+:\\d+: ").ReplaceAllString(text, "")
				var lines []string
				for line := range strings.Lines(text) {
					if !strings.HasPrefix(line, "Inputs: ") && !strings.HasPrefix(strings.TrimSpace(line), "proxyc snapshot ") {
						lines = append(lines, line)
					}
				}
				slices.Sort(lines) // findings are sorted by position
				return strings.Join(lines, "")
			}
			if code != wantCode || normal(got) != normal(want) {
				t.Errorf("%s %s: exit code %d, want %d\n%s\ngot\n%s\nwant\n%s", verb, from, code, wantCode, errs, got, want)
			}
			if take := "       proxyc snapshot -o cluster.json " + strings.Join(from, " ") + "\n"; strings.HasPrefix(verb, "migrate") && !strings.Contains(got, take) {
				t.Errorf("%s: no step is %s\n%s", verb, take, got)
			}
			if asked["services"] != 1 {
				t.Errorf("%s: Services were requested %d times", verb, asked["services"])
			}
		}
	}
	if _, errs, code := proxyc("compile", "--context", "prod", "-s", file); code != exitBad || !strings.Contains(errs, "--snapshot, --context: use only one") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	// Beside a snapshot, --kubeconfig is that of kube-proxy's command line.
	if _, errs, code := proxyc("compile", "--node", "node1", "--kubeconfig", "none", "-s", file); code != exitDone {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// status --context shows all Nodes, first those whose daemon does not run, is not ready or reports that its
// rules are not in force. A condition without a Pod proves nothing.
func TestStatusOfNodes(t *testing.T) {
	condition := func(kind, value, reason string) string {
		return fmt.Sprintf(`{"type":%q,"status":%q,"reason":%q,"message":"for a test","lastTransitionTime":"2026-11-30T10:00:00Z"}`, kind, value, reason)
	}
	ready, programmed := condition("Ready", "True", "KubeletReady"), condition("ServicesProgrammed", "True", "RulesInForce")
	node := func(name string, conditions ...string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"status":{"conditions":[%s]}}`, name, strings.Join(conditions, ","))
	}
	pod := func(node, ready, state string) string {
		return fmt.Sprintf(`{"metadata":{"name":"proxyc-%s","namespace":"kube-system","creationTimestamp":"2026-11-30T09:00:00Z"},"spec":{"nodeName":%q},
			"status":{"phase":"Running","conditions":[%s],"containerStatuses":[{"restartCount":3,"state":%s}]}}`, node, node, condition("Ready", ready, ""), state)
	}
	nodes := []string{node("a", ready), node("b", ready, programmed), node("c", ready), node("d", ready, condition("ServicesProgrammed", "False", "Behind")),
		node("e", condition("Ready", "Unknown", "NodeStatusUnknown"), programmed), node("f", ready, programmed)}
	pods := []string{pod("a", "True", "{}"), pod("b", "True", "{}"), pod("c", "False", `{"waiting":{"reason":"CrashLoopBackOff"}}`), pod("d", "True", "{}"), pod("e", "True", "{}")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		kind, items := "Node", nodes
		if path.Base(r.URL.Path) == "pods" {
			if kind, items = "Pod", pods; !strings.Contains(r.URL.Query().Get("labelSelector"), "proxyc") {
				t.Errorf("asks for Pods %s", r.URL.RawQuery)
			}
		}
		fmt.Fprintf(w, `{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[%s]}`, kind, strings.Join(items, ","))
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, kubeconfigForm, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	status := func() (string, int) {
		var out bytes.Buffer
		e := osEnv()
		e.args, e.stdout, e.stderr, e.terminal = []string{"status", "--kubeconfig", kubeconfig, "--context", "prod"}, &out, &out, false
		code := run(e)
		return regexp.MustCompile(` +\d+h\d+m\d+s +`).ReplaceAllString(out.String(), "  AGE  "), code
	}
	got, code := status()
	const want = `NODE  READY  SINCE    RESTARTS  REASON
c     no  AGE  3         its container waits: CrashLoopBackOff
d     no  AGE  3         Behind: for a test
e     no  AGE  0         the Node is not ready: for a test
f     no     -        0         no Pod of proxyc; condition ServicesProgrammed is still True, perhaps from a daemon that has ended
a     yes  AGE  3         the Pod is ready
b     yes  AGE  3         RulesInForce: for a test
2 of 6 Nodes are ready.
`
	if normal := regexp.MustCompile(`SINCE +`).ReplaceAllString(got, "SINCE    "); code != exitFindings || regexp.MustCompile(`- +0`).ReplaceAllString(normal, "-        0") != want {
		t.Errorf("exit %d:\n%s\nwant\n%s", code, got, want)
	}
	all := nodes
	nodes = nil
	if got, code := status(); code != exitFindings {
		t.Errorf("without Nodes: exit %d:\n%s", code, got)
	}
	nodes, pods = all[:2], pods[:2]
	if got, code := status(); code != exitDone || !strings.HasSuffix(got, "2 of 2 Nodes are ready.\n") {
		t.Errorf("exit %d:\n%s", code, got)
	}
}

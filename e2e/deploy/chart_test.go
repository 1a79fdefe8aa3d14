package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	manifests = "../../docs/deploy"
	chartDir  = manifests + "/chart"
)

// TestMain silences Helm, which logs every link that it follows in the chart.
func TestMain(m *testing.M) {
	runTool()
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}

type object = map[string]any

// decode returns the objects of a file by kind and name.
func decode(t *testing.T, data []byte) map[string]object {
	t.Helper()
	out := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, data)
		}
		if o != nil {
			out[fmt.Sprint(o["kind"], " ", at(o, "metadata", "name"))] = o
		}
	}
}

// at follows keys and indices into an object. It returns nil if there is nothing.
func at(o any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := o.(object)
			o = m[p]
		case int:
			l, _ := o.([]any)
			if p >= len(l) {
				return nil
			}
			o = l[p]
		}
	}
	return o
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// plain returns the objects of plain manifests.
func plain(t *testing.T, files ...string) map[string]object {
	t.Helper()
	out := map[string]object{}
	for _, f := range files {
		maps.Copy(out, decode(t, read(t, filepath.Join(manifests, f))))
	}
	return out
}

// render returns the output of helm template. values has the form of a user's values file.
func render(t *testing.T, values string) (map[string]object, error) {
	t.Helper()
	texts, err := Render(chartDir, []byte(values))
	if err != nil {
		return nil, err
	}
	out := map[string]object{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasSuffix(name, ".yaml") {
			maps.Copy(out, decode(t, []byte(texts[name])))
		}
	}
	return out, nil
}

func rendered(t *testing.T, values string) map[string]object {
	t.Helper()
	out, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestChartIsTheManifests checks that the chart with its defaults equals the plain manifests,
// which the end-to-end tests run.
func TestChartIsTheManifests(t *testing.T) {
	if d := cmp.Diff(plain(t, "rbac.yaml", "daemonset.yaml"), rendered(t, "image: PROXYC_IMAGE")); d != "" {
		t.Errorf("(-manifests +chart):\n%s", d)
	}
	want := plain(t, "rbac.yaml", "daemonset.yaml", "windows.yaml")
	if d := cmp.Diff(want, rendered(t, "{image: PROXYC_IMAGE, windows: {enabled: true, image: PROXYC_IMAGE}}")); d != "" {
		t.Errorf("with Windows (-manifests +chart):\n%s", d)
	}
}

func TestLint(t *testing.T) {
	for _, values := range []string{
		"image: i",
		"{image: i, configuration: {mode: nftables, metricsBindAddress: '0.0.0.0:10249'}, apiServer: 'https://10.0.0.1:6443', canary: {enabled: true}, podMonitor: {enabled: true}," +
			" prometheusRule: {enabled: true}, dashboard: {enabled: true}, networkPolicy: {enabled: true}, windows: {enabled: true, image: w}}",
	} {
		given, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.All(chartDir, given, "kube-system", true).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("%s: %s: %v", values, m.Path, m.Err)
			}
		}
	}
}

// TestWrongValues checks that wrong values are rejected with the field and what it accepts.
func TestWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"{}":                                "image: name the image",
		"{image: i, imagePullPolicy: Soon}": "imagePullPolicy",
		"{image: i, configuration: {mode: nft}, apiServer: 'https://a:6443'}":     "configuration/mode",
		"{image: i, configuration: {mode: nftables}}":                             "apiServer: name an address",
		"{image: i, configuration: {mode: nftables}, apiServer: '10.0.0.1:6443'}": "apiServer",
		"{image: i, clusterSize: {services: many, endpoints: 1}}":                 "clusterSize/services",
		"{image: i, clusterSize: {services: -1, endpoints: 1}}":                   "clusterSize/services",
		"{image: i, kubeadm: {healthzBindAddress: '10256'}}":                      "kubeadm/healthzBindAddress",
		"{image: i, statusSocket: /tmp/proxyc.sock}":                              "statusSocket",
		"{image: i, nodeCondition: on it}":                                        "nodeCondition",
		"{image: i, bootFile: boot.json}":                                         "bootFile",
		"{image: i, extraArgs: [v=4]}":                                            "extraArgs",
		"{image: i, nodeSelectors: {a: b}}":                                       "nodeSelectors",
		"{image: i, podMonitor: {enabled: true}}":                                 "podMonitor: metrics are at 127.0.0.1:10249",
		"{image: i, windows: {enabled: true}}":                                    "windows.image",
		"{image: i, seccompProfile: {type: Local}}":                               "seccompProfile/type",
		"{image: i, seccompProfile: {type: Localhost}}":                           "seccompProfile",
		"{image: i, updateStrategy: {type: Rolling}}":                             "updateStrategy/type",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error with %q, got %v", values, want, err)
		}
	}
}

// TestChartQuotesValues checks that values are strings in the objects, whatever they contain.
func TestChartQuotesValues(t *testing.T) {
	o := rendered(t, `{image: PROXYC_IMAGE, kubeadm: {configMap: "123"}, priorityClassName: "on", bootFile: "/var/lib/1: 2/boot.json", windows: {enabled: true, image: PROXYC_IMAGE, configMap: "0x1", network: "Overlay #1"}}`)
	linux, windows := o["DaemonSet proxyc"], o["DaemonSet proxyc-windows"]
	pod := []any{"spec", "template", "spec"}
	for _, v := range []struct {
		of   object
		path []any
		want string
	}{
		{linux, []any{"priorityClassName"}, "on"},
		{linux, []any{"volumes", 0, "configMap", "name"}, "123"},
		{linux, []any{"containers", 0, "args", 2}, "--boot-from=/var/lib/1: 2/boot.json"},
		{linux, []any{"volumes", 3, "hostPath", "path"}, "/var/lib/1: 2"},
		{windows, []any{"containers", 0, "env", 1, "value"}, "Overlay #1"},
		{windows, []any{"volumes", 0, "configMap", "name"}, "0x1"},
	} {
		if got := at(v.of, append(pod[:3:3], v.path...)...); got != v.want {
			t.Errorf("%v: %v, want %q", v.path, got, v.want)
		}
	}
}

// TestFollowsTheConfiguration checks that probes and scrapes use the servers' addresses in the
// configuration.
func TestFollowsTheConfiguration(t *testing.T) {
	const set, container = "DaemonSet proxyc", "containers"
	for _, tt := range []struct {
		values, host string
		health       int
		metrics      any // port declared for Prometheus; nil for none
	}{
		{"{image: i}", "127.0.0.1", 10256, nil},
		{"{image: i, kubeadm: {healthzBindAddress: '[::]:7', metricsBindAddress: '0.0.0.0:8'}}", "::1", 7, 8},
		{"{image: i, kubeadm: {healthzBindAddress: '10.0.0.4:7'}}", "10.0.0.4", 7, nil},
		{"{image: i, apiServer: 'https://a:6443', configuration: {healthzBindAddress: '0.0.0.0:9', metricsBindAddress: '[::1]:8'}}", "127.0.0.1", 9, nil},
		{"{image: i, apiServer: 'https://a:6443', configuration: {metricsBindAddress: '[::]:8'}}", "127.0.0.1", 10256, 8},
	} {
		c := at(rendered(t, tt.values)[set], "spec", "template", "spec", container, 0)
		for _, probe := range []string{"livenessProbe", "readinessProbe"} {
			if host, port := at(c, probe, "httpGet", "host"), at(c, probe, "httpGet", "port"); host != tt.host || port != tt.health {
				t.Errorf("%s: %s at %v port %v, want %s port %d", tt.values, probe, host, port, tt.host, tt.health)
			}
		}
		if got := at(c, "ports", 0, "containerPort"); got != tt.metrics {
			t.Errorf("%s: metrics port %v, want %v", tt.values, got, tt.metrics)
		}
	}
	objects := rendered(t, "{image: i, apiServer: 'https://10.0.0.1:6443', configuration: {mode: nftables, clusterCIDR: 10.244.0.0/16}}")
	if got := at(objects[set], "spec", "template", "spec", "volumes", 0, "configMap", "name"); got != "proxyc" {
		t.Errorf("the configuration is mounted of %v", got)
	}
	data := at(objects["ConfigMap proxyc"], "data")
	want := object{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "clusterCIDR": "10.244.0.0/16",
		"clientConnection": object{"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"}}
	var got, kubeconfig object
	if err := errors.Join(yaml.Unmarshal([]byte(at(data, "config.conf").(string)), &got), yaml.Unmarshal([]byte(at(data, "kubeconfig.conf").(string)), &kubeconfig)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
	if server := at(kubeconfig, "clusters", 0, "cluster", "server"); server != "https://10.0.0.1:6443" {
		t.Errorf("API server %v", server)
	}
}

// TestCanary checks that a canary differs only in its name, its nodes, and what it tries.
func TestCanary(t *testing.T) {
	canary := func(image string) object {
		text := strings.ReplaceAll(string(read(t, manifests+"/daemonset.yaml")), "k8s-app: proxyc", "k8s-app: proxyc-canary")
		text = strings.ReplaceAll(text, "service-proxy: proxyc", "service-proxy: proxyc-canary")
		text = strings.ReplaceAll(text, "PROXYC_IMAGE", image)
		return decode(t, []byte(strings.Replace(text, "  name: proxyc\n", "  name: proxyc-canary\n", 1)))["DaemonSet proxyc-canary"]
	}
	const set = "DaemonSet proxyc-canary"
	objects := rendered(t, "{image: PROXYC_IMAGE, canary: {enabled: true, image: new}}")
	if d := cmp.Diff(canary("new"), objects[set]); d != "" {
		t.Errorf("chart (-want +got):\n%s", d)
	}
	if d := cmp.Diff(plain(t, "daemonset.yaml")["DaemonSet proxyc"], objects["DaemonSet proxyc"]); d != "" {
		t.Errorf("the other nodes (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]object{set: canary("registry.example/proxyc:v2")}, only(kustomized(t, canaryExample(t)), "DaemonSet")); d != "" {
		t.Errorf("kustomize (-want +got):\n%s", d)
	}
}

func TestKustomize(t *testing.T) {
	if d := cmp.Diff(plain(t, "rbac.yaml", "daemonset.yaml"), kustomized(t, "resources: [deploy]\n")); d != "" {
		t.Errorf("(-manifests +kustomize):\n%s", d)
	}
}

// TestNodeCondition checks that the chart's value and the component add the same right and flag.
func TestNodeCondition(t *testing.T) {
	chart, component := rendered(t, "{image: PROXYC_IMAGE, nodeCondition: true}"), kustomized(t, "resources: [deploy]\ncomponents: [deploy/node-condition]\n")
	if d := cmp.Diff(component, chart); d != "" {
		t.Errorf("(-kustomize +chart):\n%s", d)
	}
	want := plain(t, "rbac.yaml", "daemonset.yaml", "node-condition/rbac.yaml", "node-condition/policy.yaml")
	main := at(want["DaemonSet proxyc"], "spec", "template", "spec", "containers", 0).(object)
	main["args"] = append(main["args"].([]any), "--node-condition")
	if d := cmp.Diff(want, chart); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	windows := rendered(t, "{image: i, nodeCondition: true, windows: {enabled: true, image: w}}")["DaemonSet proxyc-windows"]
	if args, _ := at(windows, "spec", "template", "spec", "containers", 0, "args").([]any); !slices.Contains(args, any("--node-condition")) {
		t.Errorf("Windows nodes run with %v", args)
	}
}

func only(objects map[string]object, kind string) map[string]object {
	maps.DeleteFunc(objects, func(name string, _ object) bool { return !strings.HasPrefix(name, kind+" ") })
	return objects
}

// kustomized builds a kustomization in a directory next to docs/deploy.
func kustomized(t *testing.T, text string) map[string]object {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"rbac.yaml", "daemonset.yaml", "kustomization.yaml", "canary/kustomization.yaml",
		"node-condition/kustomization.yaml", "node-condition/rbac.yaml", "node-condition/policy.yaml"} {
		to := filepath.Join(dir, "deploy", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, read(t, filepath.Join(manifests, file)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	data, err := got.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, data)
}

// canaryExample returns the kustomization in operate.md.
func canaryExample(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)(?:^    .*\n)*^    components: .*\n(?:^    .*\n)*`).Find(read(t, manifests+"/../operate.md"))
	if m == nil {
		t.Fatal("operate.md has no kustomization with components")
	}
	return regexp.MustCompile(`(?m)^    `).ReplaceAllString(string(m), "")
}

// TestMemory checks that the chart requests enough memory for each measured daemon, and as much
// as the page of measurements states.
func TestMemory(t *testing.T) {
	memory := func(services, endpoints int) float64 { // in MB
		t.Helper()
		set := rendered(t, fmt.Sprintf("{image: i, clusterSize: {services: %d, endpoints: %d}}", services, endpoints))["DaemonSet proxyc"]
		text, _ := at(set, "spec", "template", "spec", "containers", 0, "resources", "requests", "memory").(string)
		n, err := strconv.Atoi(strings.TrimSuffix(text, "Mi"))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return float64(n) * (1 << 20) / 1e6
	}
	page := string(read(t, "../../docs/reference/performance.md"))
	number := func(s string) float64 {
		n, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	rows := regexp.MustCompile(`(?m)^\| ([\d,]+) x (\d+) \| (?:file|API) \|.*\| (\d+) MB \| \d+ MB \|$`).FindAllStringSubmatch(page, -1)
	if len(rows) < 10 {
		t.Fatalf("performance.md has %d rows of the growth of memory", len(rows))
	}
	for _, r := range rows {
		services := number(r[1])
		endpoints := services * number(r[2])
		most, got := number(r[3]), memory(int(services), int(endpoints))
		if got < most || got > 1.2*most+30 {
			t.Errorf("%s Services of %s endpoints: %.0f MB are requested, the maximum use was %.0f", r[1], r[2], got, most)
		}
	}
	m := regexp.MustCompile(`(\d+) MB, ([\d.]+) kB for each Service and ([\d.]+) kB for each endpoint`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("performance.md does not state what memory to request")
	}
	for _, size := range [][2]int{{1000, 10000}, {10000, 100000}, {40000, 1000000}} {
		bytes := number(m[1])*1e6 + number(m[2])*1e3*float64(size[0]) + number(m[3])*1e3*float64(size[1])
		if want, got := math.Ceil(bytes/(16<<20))*16*(1<<20)/1e6, memory(size[0], size[1]); math.Abs(want-got) > 0.01 {
			t.Errorf("%d Services, %d endpoints: the chart requests %.1f MB, the page states %.1f", size[0], size[1], got, want)
		}
	}
	set := rendered(t, "{image: i, resources: {requests: {memory: 1Gi}}}")["DaemonSet proxyc"]
	if got := at(set, "spec", "template", "spec", "containers", 0, "resources", "requests"); !cmp.Equal(got, object{"cpu": "50m", "memory": "1Gi"}) {
		t.Errorf("resources of the user's own: %v", got)
	}
}

// TestNoHostPaths checks that empty flags are omitted, together with what only they need.
func TestNoHostPaths(t *testing.T) {
	set := rendered(t, "{image: i, bootFile: '', statusSocket: '', extraArgs: [--node-condition]}")["DaemonSet proxyc"]
	pod := at(set, "spec", "template", "spec")
	want := []any{"--config=/var/lib/kube-proxy/config.conf", "--hostname-override=$(NODE_NAME)", "--node-condition"}
	if d := cmp.Diff(want, at(pod, "containers", 0, "args")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if text := fmt.Sprint(pod); strings.Contains(text, "/var/lib/proxyc") {
		t.Errorf("mounts a directory for nothing: %s", text)
	}
}

// TestMonitoringObjects checks that the operators' objects contain the files that are tested
// here.
func TestMonitoringObjects(t *testing.T) {
	objects := rendered(t, "{image: i, kubeadm: {metricsBindAddress: '0.0.0.0:10249'}, podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true},"+
		" networkPolicy: {enabled: true, metricsFrom: [{podSelector: {}}]}}")
	var alerts object
	if err := yaml.Unmarshal(read(t, manifests+"/alerts.yaml"), &alerts); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(alerts, at(objects["PrometheusRule proxyc"], "spec")); d != "" {
		t.Errorf("alerts (-want +got):\n%s", d)
	}
	if got := at(objects["ConfigMap proxyc-dashboard"], "data", "proxyc.json"); got != string(read(t, manifests+"/dashboard.json")) {
		t.Errorf("dashboard: %v", got)
	}
	port := at(objects["DaemonSet proxyc"], "spec", "template", "spec", "containers", 0, "ports", 0, "name")
	if got := at(objects["PodMonitor proxyc"], "spec", "podMetricsEndpoints", 0, "port"); got == nil || got != port {
		t.Errorf("PodMonitor scrapes port %v of the pod's %v", got, port)
	}
	if got := at(objects["NetworkPolicy proxyc"], "spec", "ingress", 1, "ports", 0, "port"); got != 10249 {
		t.Errorf("NetworkPolicy: port of metrics %v", got)
	}
}

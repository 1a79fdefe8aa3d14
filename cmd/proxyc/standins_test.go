package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

const standInsBefore = `
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, externalTrafficPolicy: Local, selector: {app: web}, loadBalancerSourceRanges: [192.0.2.0/24, "2001:db8::/32"], ports: [{name: http, port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: api}, spec: {type: NodePort, selector: {app: api}, sessionAffinity: ClientIP, ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: gone}, spec: {ipFamilies: [IPv6], selector: {app: gone}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: real}, spec: {clusterIP: 10.96.0.10, selector: {app: web}, ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: shop, name: web}, spec: {replicas: 2, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: a, ports: [{name: http, containerPort: 8080}]}]}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {namespace: shop, name: api}, spec: {replicas: 3, template: {metadata: {labels: {app: api}}, spec: {containers: [{name: a, ports: [{name: http, containerPort: 8080}]}]}}}}
`

// standInsAfter removes a Service, source ranges and a replica, and renames a port.
var standInsAfter = strings.NewReplacer("name: gone", "name: come", "loadBalancerSourceRanges: [192.0.2.0/24, \"2001:db8::/32\"], ", "",
	"replicas: 3", "replicas: 2", "externalTrafficPolicy: Local, ", "").Replace(standInsBefore)

const standInNodes = `---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.244.1.0/24, "fd00:1::/64"]}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}, {type: InternalIP, address: "2001:db8::11"}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.244.2.0/24, "fd00:2::/64"]}, status: {addresses: [{type: InternalIP, address: 192.0.2.12}, {type: InternalIP, address: "2001:db8::12"}]}}
`

// standInsOf matches everything that stands in for something in manifests, and any other address of
// the ranges of stand-ins.
func standInsOf(t *testing.T, manifests ...string) *regexp.Regexp {
	t.Helper()
	var s assume.StandIns
	parts := []string{`\b2(?:4\d|5[0-5])\.\d+\.\d+\.\d+\b(?:[^/]|$)`, `(?:^|[^0-9a-f:])100::[0-9a-f:]*(?:[^/0-9a-f:]|$)`} // not a range such as 240.0.0.0/6
	for _, text := range manifests {
		snap, r := snapshot.New(), manifest.Reader{}
		if diags := r.Decode(snap, "f", []byte(text), false); diags.HasErrors() {
			t.Fatal(diags)
		}
		s.Complete(snap, r.Written(), "n1", nil)
	}
	for text := range s.Names() {
		parts = append(parts, `\b`+regexp.QuoteMeta(text)+`\b`)
	}
	return regexp.MustCompile(strings.Join(parts, "|"))
}

// No output of any command contains the address or port of a stand-in. Commands in output have
// names, which the commands accept.
func TestNoOutputHasStandIns(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	config := file("config.yaml", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16,fd00::/16\n")
	packets := file("packets.jsonl", `{"from": "pod:shop/web-0", "to": "NodePort of shop/api:dns/udp", "expect": "dropped"}
{"from": "198.51.100.7", "to": "LoadBalancer of shop/web:http", "expect": "dropped"}
{"from": "pod 1 of StatefulSet shop/api", "to": "shop/web:80"}
`)
	raw := standInsOf(t, standInsBefore, standInsAfter)
	for _, nodes := range []string{"", standInNodes} {
		before, after := file("before.yaml", standInsBefore+nodes), file("after.yaml", standInsAfter+nodes)
		out := filepath.Join(dir, "out")
		var all [][]string
		add := func(verb string, outputs []string, args ...string) {
			for _, output := range outputs {
				all = append(all, append([]string{verb, "-o", output}, args...))
			}
		}
		for _, mode := range []string{"nftables", "iptables", "ipvs"} {
			m := []string{"--mode", mode}
			add("compile", []string{"ir", "ir-json"}, m...)
			all = append(all, append([]string{"compile", "--explain"}, m...), append([]string{"compile", "--out-dir", out}, m...))
			add("diff", []string{"text", "wide", "json", "markdown", "stat", "ir"}, append(m, "-S", after)...)
			add("lint", []string{"text", "json", "sarif", "github", "markdown"}, m...)
			add("prove", []string{"text", "json"}, append(m, "ir", "mode:"+mode)...)
			all = append(all, append([]string{"report", "--against", before, "-o", "markdown"}, m...))
			if mode != "nftables" {
				continue
			}
			for _, from := range []string{"pod:shop/web-0", "pod 2 of StatefulSet shop/api", "node", "198.51.100.7", "2001:db8:1::7"} {
				for _, to := range []string{"shop/web:http", "LoadBalancer of shop/web:80/tcp", "NodePort of shop/api:80", "shop/gone:80", "real.shop:80"} {
					add("trace", []string{"text", "json"}, append(m, "--from", from, "--to", to)...)
				}
			}
			add("trace", []string{"text", "json"}, append(m, "--packets", packets)...)
			for _, what := range []string{"shop/web", "shop/api:http", "shop/gone", "shop/real", "10.96.0.10:80", "KUBE-SERVICES"} {
				add("explain", []string{"text", "json"}, append(m, what)...)
			}
		}
		add("migrate", []string{"text", "wide", "json"}, "--from", "iptables", "--to", "nftables")
		for _, args := range all {
			args = append(args, "-c", config, "-s", before, "--hostname-override", "n1")
			_, stdout, stderr := reviewed(args...)
			checkNoStandIns(t, strings.Join(args, " "), stdout+stderr, raw)
			if strings.Contains(stderr, "unknown flag") || strings.Contains(stderr, "unexpected argument") {
				t.Fatalf("%v: %s", args, stderr)
			}
		}
		files, err := filepath.Glob(out + "/*")
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			checkNoStandIns(t, name, string(text), raw)
		}
		page := filepath.Join(dir, "page.html")
		if code, _, stderr := reviewed("report", "-c", config, "-s", after, "--against", before, "--hostname-override", "n1", "-o", page); code != exitDone {
			t.Fatal(stderr)
		}
		checkPageHasNoStandIns(t, page, raw)
	}
}

func checkNoStandIns(t *testing.T, what, text string, raw *regexp.Regexp) {
	t.Helper()
	for line := range strings.Lines(text) {
		if found := raw.FindString(line); found != "" {
			t.Errorf("%s: has %s: %s", what, found, line)
			return
		}
	}
}

var scripts = regexp.MustCompile(`(?s)<script.*?</script>`)

// checkPageHasNoStandIns looks at each section of a page in a browser.
func checkPageHasNoStandIns(t *testing.T, page string, raw *regexp.Regexp) {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		if slices.ContainsFunc([]string{"chromium", "all"}, func(name string) bool {
			return slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), name)
		}) {
			t.Fatalf("PROXYC_REQUIRE: %v", err)
		}
		t.Logf("the page is not examined: %v", err)
		return
	}
	trace := func(from, to string) string { return "trace?" + url.Values{"from": {from}, "to": {to}}.Encode() }
	for section, want := range map[string]string{
		"overview": "Overview", "services/shop%2Fweb": "pod 0 of Deployment shop/web", "services/shop%2Fapi": "pod 1 of StatefulSet shop/api:8080",
		"reach": "NodePort of shop/api:80", "findings": "PX115", "diff": "LoadBalancer of shop/web",
		trace("198.51.100.7@eth0", "LoadBalancer of shop/web:http"):                 "2 backends, address masqueraded",
		trace("198.51.100.7@eth0", "NodePort of shop/api:80/tcp"):                   "2 backends, address masqueraded",
		trace("pod 0 of Deployment shop/web@pod", "ClusterIP of shop/api:http/tcp"): "must be IP or IP@INTERFACE",
	} {
		cmd := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=10000",
			"--user-data-dir="+t.TempDir(), "--dump-dom", "file://"+page+"#"+section)
		dom, err := cmd.Output()
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", section, err))
		}
		text := scripts.ReplaceAllString(string(dom), "")
		checkNoStandIns(t, section, text, raw)
		if !strings.Contains(text, want) {
			_, text, _ = strings.Cut(text, "<main")
			t.Errorf("%s: %q is missing:\n%.3000s", section, want, text)
		}
	}
}

// A manifest that does not change keeps all its stand-ins, whatever it sets. e2e.TestAdmission compares the
// same manifests, and their changes, with a real API server.
func TestStandInsRemain(t *testing.T) {
	completed := 0
	for _, p := range reviewtest.ServicePairs(41, 2000) {
		text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"namespace": "shop", "name": "web"}, "spec": p.Old})
		if err != nil {
			t.Fatal(err)
		}
		var s assume.StandIns
		var versions [2]*snapshot.Service
		for i := range versions {
			snap, r := snapshot.New(), manifest.Reader{}
			r.Decode(snap, "f", append(text, '\n'), false)
			s.Complete(snap, r.Written(), "n1", nil)
			if all := snap.Services(); len(all) > 0 {
				full := *all[0]
				full.Created = time.Time{}
				versions[i] = &full
				completed++
			}
		}
		if d := cmp.Diff(versions[0], versions[1]); d != "" {
			t.Errorf("%s (-once +again):\n%s", text, d)
		}
	}
	if completed < 1000 {
		t.Errorf("%d Services: too few to show anything", completed)
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/compiler"
)

// reviewed runs a command as in a pipeline, on a machine that is no node.
func reviewed(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(&env{args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &err, files: disk.OS{},
		hostname:   func() (string, error) { return "ci", nil },
		interfaces: func() ([]compiler.Interface, error) { return nil, nil }})
	return code, out.String(), err.String()
}

// lintManifests are the arguments of lint with a usual configuration, which has no findings.
func lintManifests(files ...string) []string {
	args := []string{"lint", "--proxy-mode", "nftables", "--cluster-cidr", "10.244.0.0/16,fd00::/64", "--nodeport-addresses", "primary"}
	for _, file := range files {
		args = append(args, "-s", file)
	}
	return args
}

// trueWarnings are the warnings about charts by chart. The Services of Harbor's StatefulSets are not headless.
var trueWarnings = map[string]string{"harbor": "[PX430]"}

// Charts as they are common in the field have no other warnings. Infos are true.
func TestCharts(t *testing.T) {
	files, err := filepath.Glob("../../testdata/charts/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d charts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			code, stdout, stderr := reviewed(append(lintManifests(file), "--fail-on", "warning")...)
			want := exitDone
			known := trueWarnings[strings.TrimSuffix(filepath.Base(file), ".yaml")]
			if known != "" {
				want = exitFindings
			}
			for line := range strings.Lines(stdout) {
				if strings.HasPrefix(line, "warning: ") && (known == "" || !strings.Contains(line, known)) {
					t.Error(line)
				}
			}
			if code != want || stderr != "" {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
			if code, _, stderr := reviewed("compile", "-s", file, "-o", "ir"); code != exitDone || strings.Contains(stderr, "error:") {
				t.Errorf("compile: exit code %d\n%s", code, stderr)
			}
		})
	}
}

// repository writes an environment of testdata/git, in which old is replaced once, to a directory.
func repository(t *testing.T, environment, old, replacement string) string {
	t.Helper()
	archive, err := txtar.ParseFile("../../testdata/git/repository.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir, replaced := t.TempDir(), 0
	for _, f := range archive.Files {
		name, in := strings.CutPrefix(f.Name, environment+"/")
		if !in {
			continue
		}
		text := string(f.Data)
		if old != "" {
			replaced += strings.Count(text, old)
			text = strings.Replace(text, old, replacement, 1)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if old != "" && replaced != 1 {
		t.Fatalf("%q occurs %d times in %s", old, replaced, environment)
	}
	return dir
}

// Each of these faults in a repository is found alone, with its object and field.
func TestFaultsInManifests(t *testing.T) {
	const lint, diff = "lint", "diff"
	tests := []struct {
		name, environment, old, new string
		by                          string
		want                        []string // parts of one line of lint, or lines of diff
	}{
		{"misspelt selector", "prod", "  selector:\n    app: web\n---", "  selector:\n    app: wbe\n---", lint,
			[]string{"Service shop/web: spec.selector: matches no workload", "Deployment shop/web, has app=web"}},
		{"misspelt key of a selector", "dev", "selector: {app: web}\n", "selector: {ap: web}\n", lint,
			[]string{"Service dev/web: spec.selector: matches no workload", "no label ap"}},
		{"targetPort that no container has", "prod", "targetPort: grpc", "targetPort: grcp", lint,
			[]string{"Service shop/api: spec.ports[1].targetPort: no container", "did you mean grpc?"}},
		{"container port renamed", "staging", "            - name: redis\n", "            - name: tcp-redis\n", lint,
			[]string{"Service default/staging-redis: spec.ports[0].targetPort: no container", "they have tcp-redis"}},
		{"labels of the template", "prod", "        app: web\n        version", "        app: website\n        version", lint,
			[]string{"Deployment shop/web: spec.selector: does not match the labels of the pod template", "app=website"}},
		{"misspelt kind", "prod", "kind: StatefulSet", "kind: StatefulSets", lint,
			[]string{"StatefulSets shop/db: kind: is not a supported kind", "did you mean StatefulSet?"}},
		{"misspelt field", "prod", "replicas: 3", "replcas: 3", lint,
			[]string{"Deployment shop/web: spec.replcas: is not a field", "did you mean replicas?"}},
		{"port of an Ingress", "prod", "number: 80", "number: 8080", lint,
			[]string{"Ingress shop/web: spec.rules[0].http.paths[0].backend.service.port: Service shop/web has no port 8080"}},
		{"port of an Ingress as text", "prod", "number: 80", `number: "80"`, lint,
			[]string{"Ingress shop/web: spec.rules[0].http.paths[0].backend.service.port.number: must be a whole number"}},
		{"port of an Ingress as name", "prod", "number: 80", `name: "80"`, lint,
			[]string{"Ingress shop/web: spec.rules[0].http.paths[0].backend.service.port: Service shop/web has no port named", "(a number is in field number)"}},
		{"port of an Ingress missing", "prod", "number: 80", "", lint,
			[]string{"Ingress shop/web: spec.rules[0].http.paths[0].backend.service.port: must be set for a Service"}},
		{"port of a route missing", "prod", "    - name: api\n      port: 80", "    - name: api", lint,
			[]string{"HTTPRoute shop/api: spec.rules[0].backendRefs[0].port: must be set for a Service"}},
		{"targetPort as text", "prod", "targetPort: grpc", `targetPort: "9090"`, lint,
			[]string{"Service shop/api: spec.ports[1].targetPort: must be lower-case letters", "write 9090 without quotes"}},
		{"Service of a route", "prod", "    - name: api\n      port: 80", "    - name: apis\n      port: 80", lint,
			[]string{"HTTPRoute shop/api: spec.rules[0].backendRefs[0].name: names Service shop/apis", "did you mean api?"}},
		{"serviceName", "staging", "serviceName: staging-redis-headless", "serviceName: staging-redis-headles", lint,
			[]string{"StatefulSet default/staging-redis: spec.serviceName: names Service", "did you mean staging-redis-headless?"}},
		{"containerPort", "staging", "containerPort: 8080", "containerPort: 80800", lint,
			[]string{"Deployment default/staging-shop: spec.template.spec.containers[0].ports[0].containerPort: must be 1-65535, got 80800"}},
		{"namespace forgotten", "prod", "  labels: {app: web}\n  name: web\n  namespace: shop\nspec:\n  ports:", "  labels: {app: web}\n  name: web\nspec:\n  ports:", lint,
			[]string{"Service default/web: spec.selector: matches no workload of namespace default, but Deployment shop/web"}},
		{"object twice", "prod", "  name: db-pods\n", "  name: db\n", lint, []string{"Service shop/db: is a duplicate", "data.yaml:1"}},
		{"protocol of DNS", "dev", "targetPort: dns, protocol: UDP", "targetPort: dns", lint,
			[]string{"Service dev/dns: spec.ports[1].port: must be unique in the Service for protocol TCP, got 53"}},

		{"source ranges removed", "prod", "  loadBalancerSourceRanges:\n  - 192.0.2.0/24\n", "", diff,
			[]string{"~ shop/admin", "outside but 192.0.2.0/24, this node: dropped → served", "is:  Service shop/admin: spec.loadBalancerSourceRanges (not set)"}},
		{"Service removed", "prod", "apiVersion: v1\nkind: Service\nmetadata:\n  name: api\n", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: api\n", diff,
			[]string{"- shop/api", "ClusterIP of shop/api:9090/tcp", "served → not proxied"}},
		{"client address lost", "prod", "  externalTrafficPolicy: Local\n", "", diff,
			[]string{"~ edge/gateway", "client address kept → masqueraded"}},
		{"database opened", "prod", "  selector: {app: db, role: primary}\n", "  selector: {app: db, role: primary}\n  type: NodePort\n", diff,
			[]string{"~ shop/db", "NodePort of shop/db:5432/tcp", "outside", "not proxied → served"}},
		{"no replicas", "prod", "replicas: 2", "replicas: 0", diff,
			[]string{"~ shop/api", "served → rejected", "is:  Deployment shop/api: spec.replicas (the workload has 0 replicas)"}},
		{"affinity removed", "prod", "  sessionAffinity: ClientIP\n", "", diff, []string{"~ shop/api", "affinity"}},
		{"node port changed", "staging", "nodePort: 30080", "nodePort: 30081", diff, []string{"~ default/staging-shop", "30080", "served → not proxied", "30081"}},
	}
	found := 0
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := repository(t, tt.environment, tt.old, tt.new)
			args := lintManifests(dir)
			if tt.by == diff {
				args = []string{"diff", "-s", repository(t, tt.environment, "", ""), "-S", dir, "--hostname-override", "node1"}
			}
			code, stdout, stderr := reviewed(args...)
			lines := []string{stdout}
			if tt.by == lint {
				lines = strings.Split(stdout, "\n")
			}
			if code == exitDone || !containsAll(lines, tt.want) {
				t.Fatalf("exit code %d, no line has all of %q:\n%s%s", code, tt.want, stdout, stderr)
			}
			found++
		})
	}
	t.Logf("%d of %d faults were found", found, len(tests))
}

// containsAll reports whether a text contains all parts.
func containsAll(texts, parts []string) bool {
next:
	for _, text := range texts {
		for _, part := range parts {
			if !strings.Contains(text, part) {
				continue next
			}
		}
		return true
	}
	return false
}

// The repository without a fault has no warnings, and no differences from itself.
func TestManifestsWithoutFaults(t *testing.T) {
	for _, environment := range []string{"prod", "staging", "dev"} {
		dir := repository(t, environment, "", "")
		if code, stdout, _ := reviewed(append(lintManifests(dir), "--fail-on", "warning")...); code != exitDone {
			t.Errorf("%s: %s", environment, stdout)
		}
		if code, stdout, stderr := reviewed("diff", "-s", dir, "-S", dir, "--hostname-override", "node1"); code != exitDone {
			t.Errorf("%s: %s%s", environment, stdout, stderr)
		}
	}
}

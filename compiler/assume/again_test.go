package assume

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// taken are clusters in states that manifests do not describe: rollouts, pods that are pending or
// terminating, numbers of pods that others set, and pods that differ from their template.
func taken() map[string]string {
	const http = "{name: http, port: 8080, protocol: TCP}"
	const ready, unready, ending = "", " , conditions: {ready: false, serving: false}", " , conditions: {ready: false, serving: true, terminating: true}"
	const template = "selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 8080}]}]}}"
	nodes := ""
	for i, rest := range []string{"role: control}}, spec: {taints: [{key: control, effect: NoSchedule}]}", "role: edge}}", "role: core}}"} {
		nodes += fmt.Sprintf("---\n{apiVersion: v1, kind: Node, metadata: {name: n%d, labels: {kubernetes.io/hostname: n%d, %s, status: {addresses: [{type: InternalIP, address: 192.0.2.%d}]}}\n", i+1, i+1, rest, i+1)
	}
	on := func(service, load string, endpoints ...string) string {
		slice := sliceOf("web", "web-1", "IPv4", http, endpoints...)
		if len(endpoints) == 0 {
			slice = strings.TrimSpace(slice) + " null\n"
		}
		return nodes + slice + load + "---\napiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: web}\nspec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP, targetPort: http}], " + service + "}\n"
	}
	const web = "selector: {app: web}"
	pod := func(name, owner string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: %s, uid: p, labels: {app: web, pod-template-hash: 7d4b9c8f6d}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: %s, uid: a, controller: true}]}\nspec: {nodeName: n2, containers: [{ports: [{name: http, containerPort: 8080}]}]}\nstatus: {phase: Running, podIPs: [{ip: 10.0.0.1}]}\n", name, owner)
	}
	deployment := func(spec string) string { return workload("apps/v1", "Deployment", "web", spec+template) }
	const a, b, c, d = "web-7d4b9c8f6d-2x4zb@10.0.0.1 n2", "web-7d4b9c8f6d-5hkrt@10.0.0.2 n3", "web-5f6b9c8f6d-zzzzz@10.0.0.3 n3", "web-5f6b9c8f6d-xxxxx@10.0.0.4 n2"
	pods := pod("web-7d4b9c8f6d-2x4zb", "web-7d4b9c8f6d") + pod("web-7d4b9c8f6d-5hkrt", "web-7d4b9c8f6d")
	return map[string]string{
		"a rollout with one more":              on(web, deployment("replicas: 3, "), a+ready, b+unready, c+ready, d+ready),
		"terminating pods":                     on(web, deployment("replicas: 3, "), a+ending, b+ending, c+unready),
		"a pending pod":                        on(web, deployment("replicas: 2, "), a),
		"only pending pods":                    on(web, deployment("replicas: 2, ")),
		"an autoscaler at 0":                   on(web, deployment("replicas: 0, ")),
		"Pods without their ReplicaSet":        on(web, deployment("replicas: 2, ")+pods, a, b),
		"Pods with their ReplicaSet":           on(web, deployment("replicas: 2, ")+pods+workload("apps/v1", "ReplicaSet", "web-7d4b9c8f6d", "replicas: 2, "+template), a, b),
		"Pods of something unknown":            on(web, pods, a, b),
		"a StatefulSet without its first pod":  on(web, workload("apps/v1", "StatefulSet", "web", "replicas: 3, ordinals: {start: 1}, "+template), "web-3@10.0.0.1 n2", "web-2@10.0.0.2 n2"),
		"a DaemonSet with a pending pod":       on(web, workload("apps/v1", "DaemonSet", "web", template), "web-2x4zb@10.0.0.1 n2"),
		"a DaemonSet on a Node with a taint":   on(web, workload("apps/v1", "DaemonSet", "web", template), "web-2x4zb@10.0.0.1 n1", "web-5hkrt@10.0.0.2 n2"),
		"a Node with another label since":      on(web, workload("apps/v1", "DaemonSet", "web", strings.Replace(template, "spec: {", "spec: {nodeSelector: {role: edge}, ", 1)), "web-2x4zb@10.0.0.1 n3"),
		"no Node has the label":                on(web, workload("apps/v1", "Deployment", "web", "replicas: 2, "+strings.Replace(template, "spec: {", "spec: {nodeSelector: {role: gpu}, ", 1)), a),
		"the network of nodes without address": on(web, workload("apps/v1", "Deployment", "web", "replicas: 1, "+strings.Replace(template, "spec: {", "spec: {hostNetwork: true, ", 1)), a),
		"labels that pods get when they run":   on("selector: {app: web, role: primary}", workload("apps/v1", "StatefulSet", "web", "replicas: 3, "+template), "web-1@10.0.0.1 n2"),
		"pods of an earlier template":          on(web, workload("apps/v1", "Deployment", "web", "replicas: 1, "+strings.Replace(template, "8080", "9090", 1)), a),
		"a CronJob":                            on(web, workload("batch/v1", "CronJob", "web", "jobTemplate: {spec: {"+template[strings.Index(template, "template"):]+"}}"), "web-29000000-2x4zb@10.0.0.1 n2"),
		"endpoints of a person":                on("type: ClusterIP", deployment("replicas: 1, "), "web-a@10.0.0.1 n2"),
		"mirrored Endpoints": on("type: ClusterIP", "---\n{apiVersion: v1, kind: Endpoints, metadata: {namespace: shop, name: web}, subsets: [{addresses: [{ip: 10.0.0.1, nodeName: n2, targetRef: {kind: Pod, name: web-a}}], ports: [{name: http, port: 8080, protocol: TCP}]}]}\n",
			"web-a@10.0.0.1 n2"),
	}
}

// An object of the cluster that is applied again changes nothing, nor does one that leaves the number of
// pods to the cluster.
func TestApplyAgain(t *testing.T) {
	clusters := taken()
	files, err := filepath.Glob("../../testdata/charts/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		clusters[filepath.Base(file)] = "---\n" + string(text)
	}
	state := func(t *testing.T, cluster, manifests string) (out []string) {
		var s StandIns
		snap, found := apply(t, &s, cluster, manifests)
		for _, svc := range snap.Services() {
			out = append(out, svc.Name.String()+" "+describe(&s, svc))
			for _, slice := range snap.Slices(svc.Name) {
				for _, e := range slice.Endpoints {
					out = append(out, fmt.Sprintf("%s: %s %s %t %t %v", svc.Name, e.Address, e.NodeName, e.Ready, e.Serving, slice.Ports))
				}
			}
		}
		slices.Sort(out)
		return append(out, found...)
	}
	number := regexp.MustCompile(`(?m)^(spec: \{)replicas: \d+, `)
	for name, cluster := range clusters {
		t.Run(name, func(t *testing.T) {
			want := state(t, cluster, "")
			for _, object := range append(strings.SplitAfter(cluster, "---\n"), cluster) {
				for _, manifest := range slices.Compact([]string{object, number.ReplaceAllString(object, "$1")}) {
					if d := cmp.Diff(want, state(t, cluster, manifest)); d != "" {
						t.Errorf("(-want +got):\n%s\nafter\n%s", d, manifest)
					}
				}
			}
		})
	}
}

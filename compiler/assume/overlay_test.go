package assume

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// apply decodes a snapshot and manifests, applies these, and completes the result for node n1.
func apply(t *testing.T, s *StandIns, cluster, manifests string, prune ...string) (*snapshot.Snapshot, []string) {
	t.Helper()
	snap, r := snapshot.New(), manifest.Reader{}
	o := Overlay{Objects: snapshot.New(), Was: map[string]manifest.Written{}, Node: "n1"}
	diags := r.Decode(snap, "cluster", []byte(cluster), false)
	for object, w := range r.Written() {
		o.Was[object] = w
	}
	diags.Add(r.Decode(o.Objects, "manifests", []byte(manifests), false)...)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	o.Written = r.Written()
	for _, text := range prune {
		var selection Selection
		err := selection.UnmarshalText([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		o.Prune = append(o.Prune, selection)
	}
	var found []string
	for _, d := range s.Apply(snap, &o) {
		found = append(found, d.String())
	}
	s.Complete(snap, r.Written(), "n1", nil)
	return snap, found
}

// describe returns the fields of a Service that the API server allocates, with the names of stand-ins.
func describe(s *StandIns, svc *snapshot.Service) string {
	name := func(text string) string {
		if a, err := netip.ParseAddr(text); err == nil && s.Name(a) != "" {
			return s.Name(a)
		}
		return text
	}
	port := func(p int32) string {
		if standIn := s.PortName(p); standIn != "" {
			return standIn
		}
		return fmt.Sprint(p)
	}
	words := []string{svc.Type}
	for _, a := range svc.ClusterIPs {
		words = append(words, name(a))
	}
	words = append(words, svc.IPFamilies...)
	for _, p := range svc.Ports {
		words = append(words, fmt.Sprintf("%s:%d:%s", p.Name, p.Port, port(p.NodePort)))
	}
	if svc.HealthPort != 0 {
		words = append(words, "health "+port(svc.HealthPort))
	}
	for _, in := range svc.LoadBalancer {
		words = append(words, name(in.IP))
	}
	return strings.Join(append(words, svc.SourceRanges...), " ")
}

// What was allocated stays while the type needs it, and the rest is that of the manifest.
func TestApplyServices(t *testing.T) {
	const balanced = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, " +
		"loadBalancerSourceRanges: [192.0.2.0/24], ports: [{name: a, port: 80, protocol: TCP, nodePort: 30080}, {name: b, port: 81, protocol: TCP, nodePort: 30081}]}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}"
	const dual = "type: ClusterIP, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, fd00::1], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: PreferDualStack, ports: [{port: 80, protocol: TCP}]"
	const single = "type: ClusterIP, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, ports: [{port: 80, protocol: TCP}]"
	const local = "type: LoadBalancer, externalTrafficPolicy: Local, "
	const ab = "ports: [{name: a, port: 80}, {name: b, port: 81}]"
	tests := []struct{ name, was, manifest, want string }{
		{"the same", balanced, local + "loadBalancerSourceRanges: [192.0.2.0/24], " + ab,
			"LoadBalancer 10.96.0.1 IPv4 a:80:30080 b:81:30081 health 32000 203.0.113.1 192.0.2.0/24"},
		{"source ranges are removed", balanced, local + ab, "LoadBalancer 10.96.0.1 IPv4 a:80:30080 b:81:30081 health 32000 203.0.113.1"},
		{"policy Cluster", balanced, "type: LoadBalancer, " + ab, "LoadBalancer 10.96.0.1 IPv4 a:80:30080 b:81:30081 203.0.113.1"},
		{"type NodePort", balanced, "type: NodePort, " + ab, "NodePort 10.96.0.1 IPv4 a:80:30080 b:81:30081"},
		{"type ClusterIP with a node port", balanced, "ports: [{name: a, port: 80, nodePort: 30080}]", "ClusterIP 10.96.0.1 IPv4 a:80:0"},
		{"type ClusterIP", balanced, ab, "ClusterIP 10.96.0.1 IPv4 a:80:0 b:81:0"},
		{"type ExternalName", balanced, "type: ExternalName, externalName: example.com", "ExternalName"},
		{"ports swap names", balanced, local + "ports: [{name: b, port: 80}, {name: a, port: 81}]", "LoadBalancer 10.96.0.1 IPv4 b:80:30080 a:81:30081 health 32000 203.0.113.1"},
		{"another port", balanced, local + "ports: [{name: a, port: 8080}]", "LoadBalancer 10.96.0.1 IPv4 a:8080:30080 health 32000 203.0.113.1"},
		{"a new port", balanced, local + "ports: [{name: a, port: 80}, {name: b, port: 81}, {name: c, port: 82}]",
			"LoadBalancer 10.96.0.1 IPv4 a:80:30080 b:81:30081 c:82:of shop/web:82 health 32000 203.0.113.1"},
		{"no new node ports", balanced, local + "allocateLoadBalancerNodePorts: false, ports: [{name: a, port: 80}, {name: c, port: 82}]",
			"LoadBalancer 10.96.0.1 IPv4 a:80:30080 c:82:0 health 32000 203.0.113.1"},
		{"TCP and UDP", strings.Replace(balanced, "{name: b, port: 81, protocol: TCP, nodePort: 30081}", "{name: b, port: 80, protocol: UDP, nodePort: 30080}", 1), local + "ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 80, protocol: UDP}]",
			"LoadBalancer 10.96.0.1 IPv4 a:80:30080 b:80:30080 health 32000 203.0.113.1"},
		{"a new port of a name whose node port remains", strings.Replace(balanced, "{name: b, port: 81, protocol: TCP, nodePort: 30081}", "{name: b, port: 80, protocol: UDP, nodePort: 30080}", 1), local + "ports: [{name: a, port: 80}, {name: b, port: 81, protocol: UDP}]",
			"LoadBalancer 10.96.0.1 IPv4 a:80:30080 b:81:of shop/web:81 health 32000 203.0.113.1"},
		{"type LoadBalancer", single, "type: LoadBalancer, ports: [{port: 80}]", "LoadBalancer 10.96.0.1 IPv4 :80:of shop/web:80 LoadBalancer of shop/web"},
		{"two families stay", dual, "ports: [{port: 80}]", "ClusterIP 10.96.0.1 fd00::1 IPv4 IPv6 :80:0"},
		{"two families stay with an address", dual, "clusterIP: 10.96.0.1, ports: [{port: 80}]", "ClusterIP 10.96.0.1 fd00::1 IPv4 IPv6 :80:0"},
		{"one family", dual, "ipFamilyPolicy: SingleStack, ports: [{port: 80}]", "ClusterIP 10.96.0.1 IPv4 :80:0"},
		{"a second family", single, "ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]", "ClusterIP 10.96.0.1 ClusterIP of shop/web IPv4 IPv6 :80:0"},
		{"no second family in the cluster", single, "ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]", "ClusterIP 10.96.0.1 IPv4 :80:0"},
		{"no family to add", strings.Replace(single, "SingleStack", "PreferDualStack", 1), "ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]", "ClusterIP 10.96.0.1 IPv4 :80:0"},
		{"from ExternalName", "type: ExternalName, externalName: example.com", "ports: [{port: 80}]", "ClusterIP ClusterIP of shop/web IPv4 :80:0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s StandIns
			snap, found := apply(t, &s, service("web", tt.was), service("web", tt.manifest))
			if got := describe(&s, snap.Services()[0]); got != tt.want || found != nil {
				t.Errorf("got  %s\nwant %s\n%v", got, tt.want, found)
			}
		})
	}
	var s StandIns
	swapped := local + "ports: [{name: a, port: 80, nodePort: 30081}, {name: b, port: 81}]"
	if _, found := apply(t, &s, service("web", balanced), service("web", swapped)); len(found) != 1 || !strings.Contains(found[0], "ports[1].nodePort: must be unique in the Service, got 30081") {
		t.Errorf("a node port that another port keeps: %q", found)
	}
	for _, ip := range []string{"10.96.0.9", "None"} {
		snap, found := apply(t, &s, service("web", single), service("web", "clusterIP: "+ip+", ports: [{port: 81}]"))
		if svc := snap.Services()[0]; svc.ClusterIP != "10.96.0.1" || svc.Ports[0].Port != 80 || len(found) != 1 || !strings.Contains(found[0], "the API server rejects the change") {
			t.Errorf("%s: the Service is %v, findings %q", ip, svc, found)
		}
	}
}

// The status of objects is that of the snapshot, as are the fields that controllers set.
func TestApplyStatus(t *testing.T) {
	var s StandIns
	const cluster = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: a, kubernetes.io/hostname: n1}}, spec: {podCIDRs: [10.0.1.0/24], taints: [{key: t, effect: NoSchedule}]}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}], nodeInfo: {kernelVersion: 6.1.0}}}\n" +
		"---\n{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web, uid: u}, spec: {nodeName: n1}, status: {phase: Running, podIPs: [{ip: 10.0.1.1}]}}\n"
	snap, r := snapshot.New(), manifest.Reader{}
	o := Overlay{Objects: snapshot.New()}
	r.Decode(snap, "cluster", []byte(cluster+service("old", "clusterIP: 10.96.0.1, ports: [{port: 80}]")), false)
	o.Was = maps.Clone(r.Written())
	r.Decode(o.Objects, "manifests", []byte("---\n{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {role: edge}}}\n"+
		"---\n{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web}, status: {phase: Failed}}\n"+
		strings.Replace(service("new", "type: LoadBalancer, ports: [{port: 80}]"), "name: new", "name: new, uid: u, creationTimestamp: 1970-01-01T00:00:00Z", 1)+"status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}\n"), false)
	o.Written = r.Written()
	s.Apply(snap, &o)
	n, pod := snap.Node("n1"), snap.Workload("Pod shop/web")
	if w := o.Written["Node n1"]; len(n.Addresses) != 1 || len(n.PodCIDRs) != 1 || n.Zone != "a" || len(w.Taints) != 1 || w.Kernel != "6.1.0" || w.Labels["role"] != "edge" || w.Labels["kubernetes.io/hostname"] != "n1" {
		t.Errorf("Node: %+v, %+v", n, w)
	}
	if pod.Pods != 1 || !slices.Equal(pod.IPs, []string{"10.0.1.1"}) || pod.NodeName != "n1" {
		t.Errorf("Pod: %+v", pod)
	}
	if svc := snap.Service(ir.Name{Namespace: "shop", Name: "new"}); !svc.Created.IsZero() || svc.LoadBalancer != nil || o.Written[svc.Object].Live {
		t.Errorf("a new Service: %+v", svc)
	}
}

func sliceOf(service, name, family, ports string, endpoints ...string) string {
	text := fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: shop, name: %s, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\nports: [%s]\nendpoints:\n", name, service, family, ports)
	for _, e := range endpoints {
		pod, rest, _ := strings.Cut(e, "@")
		addr, node, _ := strings.Cut(rest, " ")
		node, more, _ := strings.Cut(node, " ")
		text += fmt.Sprintf("- {addresses: [%q], nodeName: %s, targetRef: {kind: Pod, name: %s}%s}\n", addr, node, pod, more)
	}
	return text
}

// Endpoints stay as far as they apply. Others are added or removed, as the cluster would.
func TestApplyEndpoints(t *testing.T) {
	const web = "clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, selector: {app: web}, ports: [{name: http, port: 80, protocol: TCP, targetPort: http}]"
	const http = "{name: http, port: 8080, protocol: TCP}"
	const template = "template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 8080}]}]}}"
	const given = "selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]"
	const nodes = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n" +
		"---\n{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: z2}}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}\n"
	const one, two = "web-7d4b9c8f6d-2x4zb@10.0.0.1 n1", "web-7d4b9c8f6d-5hkrt@10.0.0.2 n2"
	base := nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, one, two)
	deployment := func(spec string) string { return workload("apps/v1", "Deployment", "web", spec) }
	const first = "EndpointSlice shop/web-1: "
	owned := func(pod, by, app string) string {
		name, _, _ := strings.Cut(pod, "@")
		return fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: %s, labels: {app: %s}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: %s, uid: a, controller: true}]}, spec: {containers: [{ports: [{name: http, containerPort: 8080}]}]}}\n", name, app, by)
	}
	withoutSelector := strings.Replace(service("web", web), "selector: {app: web}, ", "", 1)
	mirrored := strings.Replace(sliceOf("web", "web-1", "IPv4", http, "a@10.0.0.9 n1"), "labels: {", "labels: {endpointslice.kubernetes.io/managed-by: endpointslicemirroring-controller.k8s.io, ", 1)
	endpointsOf := func(subsets string) string {
		return "---\n{apiVersion: v1, kind: Endpoints, metadata: {namespace: shop, name: web}, subsets: " + subsets + "}\n"
	}
	tests := []struct {
		name, was, manifests string
		prune                string
		want                 []string
	}{
		{name: "the same", manifests: service("web", given) + deployment("replicas: 2, "+template),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "only the workload, no number", manifests: deployment(template),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "one more", manifests: deployment("replicas: 3, " + template),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`, `assumed from Deployment shop/web: pod 2 of Deployment shop/web on "n1", http=8080`}},
		{name: "one less: not the one that is ready", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, one+" , conditions: {ready: false}", two),
			manifests: deployment("replicas: 1, " + template), want: []string{first + `10.0.0.2 on "n2", http=8080`}},
		{name: "none", manifests: deployment("replicas: 0, " + template)},
		{name: "a terminating pod does not count", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, one+" , conditions: {terminating: true}", two),
			manifests: deployment("replicas: 1, " + template), want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "a StatefulSet loses its last pod", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-10@10.0.0.1 n1", "web-9@10.0.0.2 n2"),
			manifests: workload("apps/v1", "StatefulSet", "web", "replicas: 1, ordinals: {start: 9}, "+template), want: []string{first + `10.0.0.2 on "n2", http=8080`}},
		{name: "a StatefulSet loses pods in spite of their readiness", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-0@10.0.0.1 n1 , conditions: {ready: false}", "web-1@10.0.0.2 n2"),
			manifests: workload("apps/v1", "StatefulSet", "web", "replicas: 1, "+template), want: []string{first + `10.0.0.1 on "n1", http=8080`}},
		{name: "a StatefulSet with other ordinals", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-0@10.0.0.1 n1", "web-1@10.0.0.2 n2") + workload("apps/v1", "StatefulSet", "web", "replicas: 2, "+template),
			manifests: workload("apps/v1", "StatefulSet", "web", "replicas: 2, ordinals: {start: 1}, "+template),
			want:      []string{first + `10.0.0.2 on "n2", http=8080`, `assumed from StatefulSet shop/web: pod 1 of StatefulSet shop/web on "n2", http=8080`}},
		{name: "one more than pending pods", was: base + deployment("replicas: 3, "+template), manifests: deployment("replicas: 4, " + template),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`, `assumed from Deployment shop/web: pod 3 of Deployment shop/web on "n2", http=8080`}},
		{name: "no number, at 0", was: nodes + service("web", web) + workload("apps/v1", "Deployment", "web", "replicas: 0, "+template), manifests: deployment(template)},
		{name: "a CronJob that was suspended", was: nodes + service("web", web) + workload("batch/v1", "CronJob", "web", "suspend: true, jobTemplate: {spec: {"+template+"}}"),
			manifests: workload("batch/v1", "CronJob", "web", "jobTemplate: {spec: {"+template+"}}"), want: []string{`assumed from CronJob shop/web: pod 0 of CronJob shop/web on "n1", http=8080`}},
		{name: "none, with Pods of a ReplicaSet that is missing", was: base + deployment("replicas: 2, selector: {matchLabels: {app: web}}, "+template) + owned(one, "web-7d4b9c8f6d", "web") + owned(two, "web-7d4b9c8f6d", "web"),
			manifests: deployment("replicas: 0, selector: {matchLabels: {app: web}}, " + template)},
		{name: "none, with a Pod of another ReplicaSet", was: base + deployment("replicas: 2, selector: {matchLabels: {app: web}}, "+template) + owned(one, "web-7d4b9c8f6d", "web") + owned(two, "canary-7d4b9c8f6d", "web"),
			manifests: deployment("replicas: 0, selector: {matchLabels: {app: web}}, " + template), want: []string{first + `10.0.0.2 on "n2", http=8080`}},
		{name: "a pruned workload with Pods", was: base + deployment("replicas: 2, "+template) + owned(one, "web-7d4b9c8f6d", "web") + owned(two, "web-7d4b9c8f6d", "web"), manifests: service("web", given), prune: "namespace=shop"},
		{name: "the pods of another workload stay", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, one, "web-canary-7d4b9c8f6d-5hkrt@10.0.0.2 n2"),
			manifests: deployment("replicas: 1, " + template), want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "another workload comes", manifests: workload("apps/v1", "Deployment", "web-canary", "replicas: 1, "+template),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`, `assumed from Deployment shop/web-canary: pod 0 of Deployment shop/web-canary on "n1", http=8080`}},
		{name: "a DaemonSet that selects other Nodes", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-2x4zb@10.0.0.1 n1", "web-5hkrt@10.0.0.2 n2"),
			manifests: workload("apps/v1", "DaemonSet", "web", strings.Replace(template, "spec: {", "spec: {nodeSelector: {topology.kubernetes.io/zone: z1}, ", 1)), want: []string{first + `10.0.0.1 on "n1", http=8080`}},
		{name: "a DaemonSet that selects all Nodes", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-2x4zb@10.0.0.1 n1") + workload("apps/v1", "DaemonSet", "web", strings.Replace(template, "spec: {", "spec: {nodeSelector: {topology.kubernetes.io/zone: z1}, ", 1)),
			manifests: workload("apps/v1", "DaemonSet", "web", template), want: []string{first + `10.0.0.1 on "n1", http=8080`, `assumed from DaemonSet shop/web: pod 1 of DaemonSet shop/web on "n2", http=8080`}},
		{name: "a DaemonSet that tolerates a taint", was: strings.Replace(nodes, "status:", "spec: {taints: [{key: a, effect: NoSchedule}]}, status:", 1) + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-2x4zb@10.0.0.2 n2") + workload("apps/v1", "DaemonSet", "web", template),
			manifests: workload("apps/v1", "DaemonSet", "web", strings.Replace(template, "spec: {", "spec: {tolerations: [{operator: Exists}], ", 1)), want: []string{first + `10.0.0.2 on "n2", http=8080`, `assumed from DaemonSet shop/web: pod 0 of DaemonSet shop/web on "n1", http=8080`}},
		{name: "a Deployment that selects another Node", was: base + deployment("replicas: 2, "+template), manifests: deployment("replicas: 2, " + strings.Replace(template, "spec: {", "spec: {nodeSelector: {topology.kubernetes.io/zone: z2}, ", 1)),
			want: []string{first + `10.0.0.2 on "n2", http=8080`, `assumed from Deployment shop/web: pod 0 of Deployment shop/web on "n2", http=8080`}},
		{name: "a Deployment that selects no Node", was: base + deployment("replicas: 2, "+template), manifests: deployment("replicas: 2, " + strings.Replace(template, "spec: {", "spec: {nodeSelector: {topology.kubernetes.io/zone: z3}, ", 1))},
		{name: "a DaemonSet on a cordoned Node", was: strings.Replace(nodes, "status:", "spec: {taints: [{key: a, effect: NoSchedule}]}, status:", 1) + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-2x4zb@10.0.0.1 n1", "web-5hkrt@10.0.0.2 n2"),
			manifests: workload("apps/v1", "DaemonSet", "web", template), want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "names that a person wrote", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-a@10.0.0.1 n1", "web-b@10.0.0.2 n2"),
			manifests: deployment("replicas: 1, " + template), want: []string{first + `10.0.0.1 on "n1", http=8080`}},
		{name: "a pruned workload", was: base + deployment("replicas: 2, "+template), manifests: service("web", given), prune: "namespace=shop"},
		{name: "other labels of the pods", manifests: deployment(strings.Replace(template, "app: web", "app: wep", 1))},
		{name: "another target", manifests: service("web", strings.Replace(given, "targetPort: http", "targetPort: 9090", 1)),
			want: []string{first + `10.0.0.1 on "n1", http=9090`, first + `10.0.0.2 on "n2", http=9090`}},
		{name: "another name of the port", manifests: service("web", strings.Replace(given, "name: http", "name: web", 1)),
			want: []string{first + `10.0.0.1 on "n1", web=8080`, first + `10.0.0.2 on "n2", web=8080`}},
		{name: "a target that no container has", manifests: service("web", strings.Replace(given, "targetPort: http", "targetPort: htp", 1)) + deployment(template),
			want: []string{first + `10.0.0.1 on "n1", `, first + `10.0.0.2 on "n2", `}},
		{name: "another port of the container", manifests: deployment(strings.Replace(template, "8080", "9090", 1)),
			want: []string{first + `10.0.0.1 on "n1", http=9090`, first + `10.0.0.2 on "n2", http=9090`}},
		{name: "the network of the node", manifests: deployment(strings.Replace(template, "spec: {", "spec: {hostNetwork: true, ", 1)),
			want: []string{first + `192.0.2.1 on "n1", http=8080`, first + `192.0.2.2 on "n2", http=8080`}},
		{name: "no longer the network of the node", was: nodes + service("web", web) + sliceOf("web", "web-1", "IPv4", http, "web-7d4b9c8f6d-2x4zb@192.0.2.1 n1"),
			manifests: deployment(template), want: []string{first + `pod 0 of Deployment shop/web on "n1", http=8080`}},
		{name: "a selector that no pod has", manifests: service("web", strings.Replace(given, "app: web", "app: wep", 1))},
		{name: "a selector with a label that may be missing", manifests: service("web", strings.Replace(given, "app: web", "app: web, tier: a", 1))},
		{name: "a selector without one of two labels", was: strings.Replace(base, "app: web", "app: web, tier: a", 1), manifests: service("web", given),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "a new Service of the same pods", was: strings.NewReplacer("name: web}", "name: old}", "service-name: web", "service-name: old").Replace(base), manifests: service("web", given),
			want: []string{"assumed from " + first + `10.0.0.1 on "n1", http=8080`, "assumed from " + first + `10.0.0.2 on "n2", http=8080`}},
		{name: "no selector before: the endpoints are someone's own", was: strings.Replace(base, "selector: {app: web}, ", "", 1), manifests: service("web", given),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`}},
		{name: "no selector before: the pods are endpoints, too", was: withoutSelector + sliceOf("web", "web-1", "IPv4", http, "a@10.0.0.9 n1") + service("old", web) + sliceOf("old", "old-1", "IPv4", http, one) + deployment("replicas: 1, "+template),
			manifests: service("web", given), want: []string{first + `10.0.0.9 on "n1", http=8080`, `assumed from EndpointSlice shop/old-1: 10.0.0.1 on "n1", http=8080`}},
		{name: "no selector before: the endpoints are mirrored", was: withoutSelector + mirrored + service("old", web) + sliceOf("old", "old-1", "IPv4", http, one) + deployment("replicas: 1, "+template),
			manifests: service("web", given), want: []string{`assumed from EndpointSlice shop/old-1: 10.0.0.1 on "n1", http=8080`}},
		{name: "mirrored Endpoints", was: withoutSelector + mirrored, manifests: endpointsOf("[{addresses: [{ip: 10.0.0.8}], ports: [{name: http, port: 8080}]}]"), want: []string{`Endpoints shop/web: 10.0.0.8 on "", http=8080`}},
		{name: "mirrored Endpoints beside an EndpointSlice", was: withoutSelector + mirrored + sliceOf("web", "web-2", "IPv4", http, "b@10.0.0.7 n1"), manifests: endpointsOf("[{addresses: [{ip: 10.0.0.8}], ports: [{name: http, port: 8080}]}]"),
			want: []string{`EndpointSlice shop/web-2: 10.0.0.7 on "n1", http=8080`, `Endpoints shop/web: 10.0.0.8 on "", http=8080`}},
		{name: "no more mirrored Endpoints", was: withoutSelector + mirrored, manifests: endpointsOf("[]")},
		{name: "v1 Endpoints", was: nodes + service("web", web) + "---\n{apiVersion: v1, kind: Endpoints, metadata: {namespace: shop, name: web}, subsets: [{addresses: [{ip: 10.0.0.1, nodeName: n1, targetRef: {kind: Pod, name: web-a}}, {ip: 10.0.0.2, nodeName: n2, targetRef: {kind: Pod, name: web-b}}], ports: [{name: http, port: 8080}]}]}\n",
			manifests: deployment("replicas: 1, " + template), want: []string{`Endpoints shop/web: 10.0.0.1 on "n1", http=8080`}},
		{name: "the manifests have the EndpointSlice", manifests: service("web", given) + deployment("replicas: 0, "+template) + sliceOf("web", "web-1", "IPv4", http, "web-a@10.0.0.9 n1"),
			want: []string{first + `10.0.0.9 on "n1", http=8080`}},
		{name: "a second family", manifests: service("web", "ipFamilyPolicy: RequireDualStack, "+given),
			want: []string{first + `10.0.0.1 on "n1", http=8080`, first + `10.0.0.2 on "n2", http=8080`,
				"assumed from " + first + `pod web-7d4b9c8f6d-2x4zb on "n1", http=8080`, "assumed from " + first + `pod web-7d4b9c8f6d-5hkrt on "n2", http=8080`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s StandIns
			if tt.was == "" {
				tt.was = base
			}
			var prune []string
			if tt.prune != "" {
				prune = []string{tt.prune}
			}
			snap, found := apply(t, &s, tt.was, tt.manifests, prune...)
			slices.Sort(tt.want)
			if d := cmp.Diff(tt.want, endpoints(&s, snap)); d != "" || found != nil {
				t.Errorf("%v (-want +got):\n%s", found, d)
			}
		})
	}
}

// New endpoints have hints where the others do, and all have those of a new traffic distribution.
func TestApplyHints(t *testing.T) {
	const hinted = ", hints: {forZones: [{name: z1}]}"
	base := "---\n{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}}}\n" +
		service("web", "clusterIP: 10.96.0.1, ipFamilies: [IPv4], selector: {app: web}, trafficDistribution: PreferClose, ports: [{port: 80, protocol: TCP}]") +
		sliceOf("web", "web-1", "IPv4", `{name: "", port: 80, protocol: TCP}`, "web-0@10.0.0.1 n1 "+hinted)
	// Hints for nodes need no Node and no zone.
	var bare StandIns
	snap, _ := apply(t, &bare, strings.ReplaceAll(base[strings.Index(base, "---\napi"):], hinted, ""), service("web", "selector: {app: web}, trafficDistribution: PreferSameNode, ports: [{port: 80}]"))
	if e := snap.Slices(snap.Services()[0].Name)[0].Endpoints[0]; fmt.Sprint(e.ZoneHints(), e.NodeHints()) != "[] [n1]" {
		t.Errorf("without Nodes the hints are %v %v", e.ZoneHints(), e.NodeHints())
	}
	load := workload("apps/v1", "StatefulSet", "web", "replicas: 2, template: {metadata: {labels: {app: web}}}")
	for distribution, want := range map[string]string{"PreferClose": "[z1] [], [z1] []", "PreferSameNode": "[z1] [n1], [z1] [n1]", "": "[] [], [] []"} {
		spec := "selector: {app: web}, ports: [{port: 80}]"
		if distribution != "" {
			spec += ", trafficDistribution: " + distribution
		}
		var s StandIns
		snap, _ := apply(t, &s, base, service("web", spec)+load)
		var got []string
		for _, slice := range snap.Slices(snap.Services()[0].Name) {
			for i := range slice.Endpoints {
				got = append(got, fmt.Sprint(slice.Endpoints[i].ZoneHints(), " ", slice.Endpoints[i].NodeHints()))
			}
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("%q: got %s, want %s", distribution, got, want)
		}
	}
}

// The readiness of endpoints follows a change of publishNotReadyAddresses, as the EndpointSlice
// controller sets it.
func TestApplyPublish(t *testing.T) {
	const real = "clusterIP: 10.96.0.1, ipFamilies: [IPv4], selector: {app: web}, ports: [{port: 80, protocol: TCP}]"
	const given = "selector: {app: web}, ports: [{port: 80}]"
	pods := func(service string, unready bool) string {
		return sliceOf(service, service+"-1", "IPv4", `{name: "", port: 80, protocol: TCP}`,
			"web-a@10.0.0.1 n1 , conditions: {ready: true, serving: true, terminating: false}",
			fmt.Sprintf("web-b@10.0.0.2 n1 , conditions: {ready: %t, serving: false, terminating: false}", unready),
			fmt.Sprintf("web-c@10.0.0.3 n1 , conditions: {ready: %t, serving: true, terminating: true}", unready))
	}
	const publish = ", publishNotReadyAddresses: true"
	tests := []struct{ name, was, manifest, want string }{
		{"set", service("web", real) + pods("web", false), given + publish, "10.0.0.1 10.0.0.2 10.0.0.3"},
		{"unset", service("web", real+publish) + pods("web", true), given, "10.0.0.1"},
		{"the same", service("web", real+publish) + pods("web", true), given + publish, "10.0.0.1 10.0.0.2 10.0.0.3"},
		{"a new Service", service("old", real) + pods("old", false), given + publish, "10.0.0.1 10.0.0.2"}, // web-c ends
		{"a new Service beside one that publishes", service("old", real+publish) + pods("old", true), given, "10.0.0.1"},
	}
	for _, tt := range tests {
		var s StandIns
		snap, _ := apply(t, &s, tt.was, service("web", tt.manifest))
		var ready []string
		for _, slice := range snap.Slices(ir.Name{Namespace: "shop", Name: "web"}) {
			for _, e := range slice.Endpoints {
				if e.Ready {
					ready = append(ready, e.Address)
				}
			}
		}
		if got := strings.Join(ready, " "); got != tt.want {
			t.Errorf("%s: ready are %s, want %s", tt.name, got, tt.want)
		}
	}
}

// An object that the API server rejects remains as it was, with all reasons. Others are applied.
func TestApplyRejected(t *testing.T) {
	const cluster = "clusterIP: 10.96.0.%d, clusterIPs: [10.96.0.%d], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, "
	real := func(i int, spec string) string { return fmt.Sprintf(cluster, i, i) + spec }
	base := service("web", real(1, "type: LoadBalancer, loadBalancerClass: a.example/a, externalTrafficPolicy: Local, healthCheckNodePort: 32000, ports: [{port: 80, protocol: TCP, nodePort: 30080}]")) +
		service("dns", real(2, "type: NodePort, ports: [{port: 53, protocol: UDP, nodePort: 30053}]")) +
		workload("apps/v1", "Deployment", "web", "selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}")
	const balancer = "type: LoadBalancer, externalTrafficPolicy: Local, "
	const ports = "ports: [{port: 80}]"
	const kept = ": the API server rejects the change, and the object of the snapshot is kept"
	const web, remove = "Service shop/web: spec.", " (remove it, or delete the Service first)"
	tests := []struct {
		name, manifests string
		want            []string
	}{
		{"the same class", service("web", balancer+"loadBalancerClass: a.example/a, "+ports), nil},
		{"no class, which a webhook may set", service("web", balancer+ports), nil},
		{"another class", service("web", balancer+"loadBalancerClass: b.example/b, "+ports),
			[]string{web + `loadBalancerClass: must be a.example/a, as in the snapshot, got "b.example/b"` + kept + remove}},
		{"fields that another type drops", service("web", "type: ClusterIP, externalTrafficPolicy: Local, loadBalancerClass: a.example/a, healthCheckNodePort: 32000, ports: [{port: 80, nodePort: 30080}]"), nil},
		{"the same fields with other values", service("web", "type: ClusterIP, externalTrafficPolicy: Cluster, loadBalancerClass: b.example/b, ports: [{port: 80, nodePort: 30081}]"), []string{
			web + "externalTrafficPolicy: must not be set without type NodePort or LoadBalancer" + kept + " (set spec.type, or remove it)",
			web + "loadBalancerClass: must not be set without type LoadBalancer" + kept + " (set spec.type: LoadBalancer, or remove it)",
			web + "ports[0].nodePort: must not be set with type ClusterIP, got 30081" + kept + " (set spec.type: NodePort, or remove it)"}},
		{"source ranges, which no type drops", service("web", "loadBalancerSourceRanges: [192.0.2.0/24], "+ports),
			[]string{web + "loadBalancerSourceRanges: must not be set without type LoadBalancer" + kept + " (set spec.type: LoadBalancer, or remove it)"}},
		{"another family", service("web", balancer+"ipFamilies: [IPv6], "+ports), []string{web + `ipFamilies[0]: must be IPv4, as in the snapshot, got "IPv6"` + kept + remove}},
		{"another health check port", service("web", balancer+"healthCheckNodePort: 32001, "+ports), []string{web + `healthCheckNodePort: must be 32000, as in the snapshot, got "32001"` + kept + remove}},
		{"words", service("web", "type: LoadBalancr, externalTrafficPolicy: local, internalTrafficPolicy: Node, "+ports), []string{
			web + `externalTrafficPolicy: must be Cluster or Local, got "local"` + kept + " (did you mean Local?)",
			web + "externalTrafficPolicy: must not be set without type NodePort or LoadBalancer" + kept + " (set spec.type, or remove it)",
			web + `internalTrafficPolicy: must be Cluster or Local, got "Node"` + kept,
			web + `type: must be ClusterIP or NodePort or LoadBalancer or ExternalName, got "LoadBalancr"` + kept + " (did you mean LoadBalancer?)"}},
		{"a node port of another Service, whatever its protocol", service("api", "type: NodePort, ports: [{port: 80, nodePort: 30053}]") + service("web", balancer+"ports: [{port: 80, nodePort: 30053}]"), []string{
			"Service shop/api: spec.ports[0].nodePort: must not be 30053, which Service shop/dns has: the API server rejects the Service (use another port, or remove it)",
			web + "ports[0].nodePort: must not be 30053, which Service shop/dns has" + kept + " (use another port, or remove it)"}},
		{"a health check port", service("api", "type: NodePort, ports: [{port: 80, nodePort: 32000}]"),
			[]string{"Service shop/api: spec.ports[0].nodePort: must not be 32000, which Service shop/web has: the API server rejects the Service (use another port, or remove it)"}},
		{"a node port that another Service has released", service("dns", "type: NodePort, ports: [{port: 53, protocol: UDP, nodePort: 30054}]") + service("api", "type: NodePort, ports: [{port: 80, nodePort: 30053}]"), nil},
		{"a node port that a later Service releases", service("api", "type: NodePort, ports: [{port: 80, nodePort: 30053}]") + service("dns", "type: NodePort, ports: [{port: 53, protocol: UDP, nodePort: 30054}]"),
			[]string{"Service shop/api: spec.ports[0].nodePort: must not be 30053, which Service shop/dns has: the API server rejects the Service (use another port, or remove it)"}},
		{"two Services swap their node ports", service("web", balancer+"ports: [{port: 80, nodePort: 30053}]") + service("dns", "type: NodePort, ports: [{port: 53, protocol: UDP, nodePort: 30080}]"), []string{
			"Service shop/dns: spec.ports[0].nodePort: must not be 30080, which Service shop/web has" + kept + " (use another port, or remove it)",
			web + "ports[0].nodePort: must not be 30053, which Service shop/dns has" + kept + " (use another port, or remove it)"}},
		{"a clusterIP of another Service", service("api", "clusterIP: 10.96.0.2, ports: [{port: 81}]"),
			[]string{"Service shop/api: spec.clusterIPs[0]: must not be 10.96.0.2, which Service shop/dns has: the API server rejects the Service (use another address, or remove it)"}},
		{"a clusterIP outside of the ServiceCIDRs", service("api", "clusterIP: 10.97.0.2, ports: [{port: 81}]") + "---\n{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}\n",
			[]string{"Service shop/api: spec.clusterIPs[0]: must be an address of the ServiceCIDRs, got 10.97.0.2: the API server rejects the Service (remove it)"}},
		{"a node port that another Service would release, if it were not rejected", service("api", "type: NodePort, ports: [{port: 80, nodePort: 30053}]") + service("dns", "type: NodePort, clusterIP: 10.96.0.9, ports: [{port: 53, protocol: UDP, nodePort: 30054}]"), []string{
			"Service shop/api: spec.ports[0].nodePort: must not be 30053, which Service shop/dns has: the API server rejects the Service (use another port, or remove it)",
			`Service shop/dns: spec.clusterIP: must be 10.96.0.2, as in the snapshot, got "10.96.0.9"` + kept + remove}},
		{"two new Services", service("api", "type: NodePort, ports: [{port: 80, nodePort: 30001}]") + service("cart", "type: NodePort, ports: [{port: 80, nodePort: 30001}]"),
			[]string{"Service shop/cart: spec.ports[0].nodePort: must not be 30001, which Service shop/api has: the API server rejects the Service (use another port, or remove it)"}},
		{"two families of one", service("api", "ipFamilyPolicy: RequireDualStack, "+ports) + service("cart", "ipFamilies: [IPv6], "+ports) + "---\n{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}\n", []string{
			"Service shop/api: spec.ipFamilyPolicy: must not be RequireDualStack with ServiceCIDRs of IPv4 only: the API server rejects the Service (use PreferDualStack)",
			"Service shop/cart: spec.ipFamilies[0]: must be a family of the ServiceCIDRs, IPv4, got IPv6: the API server rejects the Service (remove it)"}},
		{"another selector of a workload", workload("apps/v1", "Deployment", "web", "selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}}"),
			[]string{`Deployment shop/web: spec.selector: must be app=web, as in the snapshot, got "app=api"` + kept + " (use another name, or delete the Deployment first)"}},
		{"another restart policy", workload("apps/v1", "Deployment", "web", "template: {metadata: {labels: {app: api}}, spec: {restartPolicy: Never}}"),
			[]string{`Deployment shop/web: spec.template.spec.restartPolicy: must be Always in a Deployment, got "Never"` + kept}},
		{"another host port", workload("apps/v1", "Deployment", "web", "template: {metadata: {labels: {app: a b}}, spec: {hostNetwork: true, containers: [{ports: [{containerPort: 80, hostPort: 81}]}]}}"), []string{
			`Deployment shop/web: spec.template.metadata.labels.app: must be letters, digits, -, _ and ., at most 63, got "a b"` + kept,
			"Deployment shop/web: spec.template.spec.containers[0].ports[0].hostPort: must be containerPort with hostNetwork, which is 80, got 81" + kept}},
		{"a selector that does not match", workload("apps/v1", "StatefulSet", "db", "selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: web}}}"),
			[]string{"StatefulSet shop/db: spec.selector: does not match the labels of the pod template, which has app=web: the API server rejects the StatefulSet"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s StandIns
			snap, found := apply(t, &s, base, tt.manifests+service("other", ports))
			for i, text := range found {
				found[i] = strings.TrimPrefix(text, "error: ")
			}
			slices.Sort(found)
			if d := cmp.Diff(tt.want, found); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			web, dns := snap.Service(ir.Name{Namespace: "shop", Name: "web"}), snap.Service(ir.Name{Namespace: "shop", Name: "dns"})
			if snap.Service(ir.Name{Namespace: "shop", Name: "other"}) == nil || snap.Workload("StatefulSet shop/db") != nil || snap.Workload("Deployment shop/web").Labels["app"] != "web" {
				t.Error("another object is missing, or a rejected one is there")
			}
			for _, text := range tt.want {
				if strings.HasPrefix(text, "Service shop/web") && (web.Type != "LoadBalancer" || web.Ports[0].NodePort != 30080) || strings.HasPrefix(text, "Service shop/dns") && dns.Ports[0].NodePort != 30053 {
					t.Errorf("the object is not kept: %+v, %+v", web, dns)
				}
			}
		})
	}
}

// A manifest with a value that the API server rejects keeps the Service of the snapshot.
func TestApplyValues(t *testing.T) {
	const was = "clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, ports: [{port: 80, protocol: TCP}]"
	const name = "lower-case letters, digits and -, at most 15, with a letter, got "
	tests := []struct{ manifest, want string }{
		{"ports: [{port: 80, protocol: tcp}]", `ports[0].protocol: must be TCP, UDP or SCTP, got "tcp"`},
		{"ports: [{port: 70000}]", "ports[0].port: must be 1-65535, got 70000"},
		{"ports: [{name: a, port: 80}, {name: b, port: 80}]", "ports[1].port: must be unique in the Service for protocol TCP, got 80"},
		{"type: NodePort, ports: [{port: 80, nodePort: -1}]", "ports[0].nodePort: must be 1-65535, got -1"},
		{`ports: [{port: 80, targetPort: "9000"}]`, "ports[0].targetPort: must be " + name + `"9000"`},
		{"ports: [{port: 80, targetPort: HTTP}]", "ports[0].targetPort: must be " + name + `"HTTP"`},
		{"ports: [{port: 80, targetPort: metrics-and-more}]", "ports[0].targetPort: must be " + name + `"metrics-and-more"`},
		{"ports: [{port: 80, appProtocol: a b}]", `ports[0].appProtocol: must be letters, digits, -, _ and ., with or without a domain and /, got "a b"`},
		{"ports: [{name: a, port: 80}, {name: a, port: 81}]", `ports[1].name: must be unique in the Service, got "a"`},
		{"type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.1], ports: [{port: 80}]", `loadBalancerSourceRanges[0]: must be a CIDR, got "10.0.0.1"`},
		{"type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: -5, ports: [{port: 80}]", "healthCheckNodePort: must be 1-65535, got -5"},
		{"type: LoadBalancer, loadBalancerClass: a b, ports: [{port: 80}]", `loadBalancerClass: must be letters, digits, -, _ and ., with or without a domain and /, got "a b"`},
		{"externalIPs: [example.com], ports: [{port: 80}]", `externalIPs[0]: must be an IP address, got "example.com"`},
		{"externalIPs: [127.0.0.1], ports: [{port: 80}]", `externalIPs[0]: must be an address that a Service can have, got "127.0.0.1"`},
		{"clusterIP: ten, ports: [{port: 80}]", `clusterIPs[0]: must be an IP address, got "ten"`},
		{"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}, ports: [{port: 80}]", "sessionAffinityConfig.clientIP.timeoutSeconds: must be 1-86400 seconds, got 0"},
		{"sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 90000}}, ports: [{port: 80}]", "sessionAffinityConfig.clientIP.timeoutSeconds: must be 1-86400 seconds, got 90000"},
		{"selector: {app: a b}, ports: [{port: 80}]", `selector.app: must be letters, digits, -, _ and ., at most 63, got "a b"`},
		{"selector: {a b: c}, ports: [{port: 80}]", `selector: must be keys of letters, digits, -, _ and ., at most 63, with or without a domain and /, got "a b"`},
		{"type: ExternalName, externalName: a_b", `externalName: must be a DNS name in lower case, got "a_b"`},
		{"sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}, ports: [{port: 80}]", ""}, // dropped with sessionAffinity None
		{"type: ExternalName, externalName: a.example.com.", ""},
		{"type: LoadBalancer, loadBalancerSourceRanges: [' 10.0.0.0/8'], ports: [{port: 80, targetPort: a-1, nodePort: 0, appProtocol: a.example/b}]", ""},
	}
	for _, tt := range tests {
		var s StandIns
		snap, found := apply(t, &s, service("web", was), service("web", tt.manifest))
		svc := snap.Services()[0]
		if tt.want == "" {
			if found != nil {
				t.Errorf("%s: %q", tt.manifest, found)
			}
			continue
		}
		if svc.Type != "ClusterIP" || len(svc.Ports) != 1 || svc.Ports[0].Port != 80 || svc.Ports[0].Protocol != "TCP" || svc.ExternalIPs != nil || svc.AffinityIP {
			t.Errorf("%s: the Service is %+v", tt.manifest, svc)
		}
		if !slices.ContainsFunc(found, func(text string) bool {
			return strings.HasPrefix(text, "Service shop/web: spec."+tt.want+": the API server rejects the change, ")
		}) {
			t.Errorf("%s:\ngot  %q\nwant %s", tt.manifest, found, tt.want)
		}
	}
	var s StandIns
	if snap, found := apply(t, &s, service("web", was), service("a.b", was)); len(found) != 1 || !strings.Contains(found[0], `metadata.name: must be lower-case letters, digits and -, at most 63, got "a.b"`) || len(snap.Services()) != 1 {
		t.Errorf("a name with a dot: %q", found)
	}
}

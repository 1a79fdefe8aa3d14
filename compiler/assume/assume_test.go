package assume

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// complete decodes manifests and completes them for node n1.
func complete(t *testing.T, s *StandIns, manifests string) *snapshot.Snapshot {
	t.Helper()
	snap, r := snapshot.New(), manifest.Reader{}
	if diags := r.Decode(snap, "f", []byte(manifests), false); diags.HasErrors() {
		t.Fatal(diags)
	}
	s.Complete(snap, r.Written(), "n1", nil)
	return snap
}

func service(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: %s}\nspec: {%s}\n", name, spec)
}

// Services have stand-ins for what the API server allocates for their type, by family.
func TestAllocate(t *testing.T) {
	var s StandIns
	const ports = "ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]"
	snap := complete(t, &s, service("plain", ports)+
		service("dual", "ipFamilyPolicy: RequireDualStack, "+ports)+
		service("six", "ipFamilies: [IPv6], "+ports)+
		service("node", "type: NodePort, ports: [{name: a, port: 80}, {name: b, port: 81, nodePort: 30000}]")+
		service("balanced", "type: LoadBalancer, externalTrafficPolicy: Local, "+ports)+
		service("direct", "type: LoadBalancer, allocateLoadBalancerNodePorts: false, "+ports)+
		service("headless", "clusterIP: None, "+ports)+
		service("name", "type: ExternalName, externalName: example.com")+
		service("real", "clusterIP: 10.96.0.10, type: LoadBalancer, ports: [{port: 80, nodePort: 30001}]"))
	name := func(text string) string {
		a, err := netip.ParseAddr(text)
		if standIn := s.Name(a); err == nil && standIn != "" {
			return fmt.Sprintf("%s (%s)", standIn, ir.FamilyOf(a))
		}
		return text
	}
	port := func(p int32) string {
		if standIn := s.PortName(p); standIn != "" {
			return standIn
		}
		return fmt.Sprint(p)
	}
	got := map[string]string{}
	for _, svc := range snap.Services() {
		var words []string
		for _, a := range svc.ClusterIPs {
			words = append(words, name(a))
		}
		for _, in := range svc.LoadBalancer {
			words = append(words, name(in.IP))
		}
		for _, p := range svc.Ports {
			if p.NodePort != 0 {
				words = append(words, "node port "+port(p.NodePort))
			}
		}
		if svc.HealthPort != 0 {
			words = append(words, "health "+port(svc.HealthPort))
		}
		got[svc.Name.Name] = strings.Join(words, ", ")
	}
	want := map[string]string{
		"plain":    "ClusterIP of shop/plain (IPv4)",
		"dual":     "ClusterIP of shop/dual (IPv4), ClusterIP of shop/dual (IPv6)",
		"six":      "ClusterIP of shop/six (IPv6)",
		"node":     "ClusterIP of shop/node (IPv4), node port of shop/node:80, node port 30000",
		"balanced": "ClusterIP of shop/balanced (IPv4), LoadBalancer of shop/balanced (IPv4), node port of shop/balanced:80, node port of shop/balanced:53, health of shop/balanced",
		"direct":   "ClusterIP of shop/direct (IPv4), LoadBalancer of shop/direct (IPv4)",
		"headless": "None", "name": "", "real": "10.96.0.10, LoadBalancer of shop/real (IPv4), node port 30001",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A stand-in does not depend on the other objects, and two snapshots with the same StandIns never
// share one for different things.
func TestIdentity(t *testing.T) {
	const spec = "type: LoadBalancer, ports: [{port: 80}]"
	var alone, both StandIns
	want := complete(t, &alone, service("web", spec)).Service(ir.Name{Namespace: "shop", Name: "web"})
	complete(t, &both, service("api", spec))
	got := complete(t, &both, service("cart", spec)+service("web", spec)).Service(want.Name)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("beside other Services (-alone +got):\n%s", d)
	}
	var crowded StandIns
	seen := map[netip.Addr]string{}
	for i := range 1 << 16 {
		of := fmt.Sprint(i)
		a := crowded.addr(ir.IPv4, of)
		if other, twice := seen[a]; twice {
			t.Fatalf("%s stands for %s and %s", a, other, of)
		}
		if seen[a] = of; !netip.MustParsePrefix("240.0.0.0/4").Contains(a) {
			t.Fatalf("%s is no reserved address", a)
		}
	}
	ports := map[int32]bool{}
	for i := range lastPort - firstPort + 2 {
		p := crowded.portOf(fmt.Sprint(i))
		if last := i > lastPort-firstPort; ports[p] || last != (p == 0) {
			t.Fatalf("port %d of %d", p, i)
		}
		ports[p] = true
	}
}

func workload(apiVersion, kind, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {namespace: shop, name: %s}\nspec: {%s}\n", apiVersion, kind, name, spec)
}

// endpoints returns the endpoints of Service shop/web.
func endpoints(s *StandIns, snap *snapshot.Snapshot) (out []string) {
	for _, slice := range snap.Slices(ir.Name{Namespace: "shop", Name: "web"}) {
		var ports []string
		for _, p := range slice.Ports {
			ports = append(ports, fmt.Sprintf("%s=%d", p.Name, p.Port))
		}
		for _, e := range slice.Endpoints {
			addr := e.Address
			if standIn := s.Name(e.Addr); standIn != "" {
				addr = standIn
			}
			out = append(out, fmt.Sprintf("%s: %s on %q, %s", slice.Object, addr, e.NodeName, strings.Join(ports, " ")))
		}
	}
	slices.Sort(out)
	return out
}

// Each kind of workload stands for its pods, with the ports that its containers have.
func TestWorkloads(t *testing.T) {
	const template = "template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 8080}]}]}}"
	web := service("web", "selector: {app: web}, ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 81, targetPort: 9000}, {name: c, port: 82}, {name: d, port: 83, targetPort: gone}, {name: e, port: 84, targetPort: http, protocol: UDP}]")
	const nodes = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n" +
		"---\n{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}\n"
	const ports = "a=8080 b=9000 c=82"
	line := func(object, addr, node string) string {
		return fmt.Sprintf("assumed from %s: %s on %q, %s", object, addr, node, ports)
	}
	tests := []struct {
		name, in string
		want     []string
	}{
		{"Deployment", workload("apps/v1", "Deployment", "web", "replicas: 2, "+template), []string{
			line("Deployment shop/web", "pod 0 of Deployment shop/web", "n1"), line("Deployment shop/web", "pod 1 of Deployment shop/web", "n1")}},
		{"spread over Nodes", nodes + workload("apps/v1", "StatefulSet", "web", "replicas: 2, "+template), []string{
			line("StatefulSet shop/web", "pod 0 of StatefulSet shop/web", "n1"), line("StatefulSet shop/web", "pod 1 of StatefulSet shop/web", "n2")}},
		{"one by default", workload("v1", "ReplicationController", "web", template), []string{line("ReplicationController shop/web", "pod 0 of ReplicationController shop/web", "n1")}},
		{"none", workload("apps/v1", "ReplicaSet", "web", "replicas: 0, "+template), nil},
		{"one per Node, on its network", nodes + workload("apps/v1", "DaemonSet", "web", strings.Replace(template, "spec: {", "spec: {hostNetwork: true, ", 1)), []string{
			line("DaemonSet shop/web", "192.0.2.1", "n1"), line("DaemonSet shop/web", "192.0.2.2", "n2")}},
		{"Job", workload("batch/v1", "Job", "web", template), []string{line("Job shop/web", "pod 0 of Job shop/web", "n1")}},
		{"CronJob", workload("batch/v1", "CronJob", "web", "jobTemplate: {spec: {"+template+"}}"), []string{line("CronJob shop/web", "pod 0 of CronJob shop/web", "n1")}},
		{"suspended", workload("batch/v1", "CronJob", "web", "suspend: true, jobTemplate: {spec: {"+template+"}}"), nil},
		{"Pod that runs", "---\n{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web, uid: u, labels: {app: web}}, spec: {nodeName: n7, containers: [{ports: [{name: http, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.244.7.1}]}}\n",
			[]string{line("Pod shop/web", "10.244.7.1", "n7")}},
		{"other labels", workload("apps/v1", "Deployment", "web", "replicas: 2, "+strings.Replace(template, "app: web", "app: wed", 1)), nil},
		{"owned by one that is there", workload("apps/v1", "Deployment", "web", template) +
			strings.Replace(workload("apps/v1", "ReplicaSet", "web-1", template), "name: web-1", "name: web-1, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u, controller: true}]", 1),
			[]string{line("Deployment shop/web", "pod 0 of Deployment shop/web", "n1")}},
		{"an EndpointSlice exists", workload("apps/v1", "Deployment", "web", template) +
			"---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: [], ports: []}\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s StandIns
			if d := cmp.Diff(tt.want, endpoints(&s, complete(t, &s, web+tt.in))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Output has the names of stand-ins, wherever its writes end, and keeps other numbers.
func TestWriter(t *testing.T) {
	var s StandIns
	four, six := s.addr(ir.IPv4, "ClusterIP of shop/web"), s.addr(ir.IPv6, "LoadBalancer of shop/web")
	port := s.portOf("of shop/web:http")
	in := fmt.Sprintf("ClusterIP %s:80/tcp       # a\n10.0.0.1:%d [%s]:80 NodePort node:%d/tcp 244.0.0.1\nports of %s: 1-79\nproxyc trace --to %s:80\nno end %s", four, port, six, port, six, four, four)
	want := fmt.Sprintf("ClusterIP of shop/web:80/tcp # a\n10.0.0.1:%d LoadBalancer of shop/web:80 NodePort of shop/web:http/tcp 244.0.0.1\nports of LoadBalancer of shop/web: 1-79\nproxyc trace --to 'ClusterIP of shop/web:80'\nno end ClusterIP of shop/web", port)
	for size := range len(in) {
		var out strings.Builder
		w := NewWriter(&out, &s)
		for chunk := range slices.Chunk([]byte(in), size+1) {
			if n, err := w.Write(chunk); n != len(chunk) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		// The comment keeps its column where the longer text leaves room.
		if got := strings.Join(strings.Fields(out.String()), " "); got != strings.Join(strings.Fields(want), " ") {
			t.Fatalf("writes of %d bytes:\n%s\nwant:\n%s", size+1, out.String(), want)
		}
	}
}

// Output shows stand-ins, but none of the ranges beside them, which no client has.
func TestShown(t *testing.T) {
	var s StandIns
	var list []netip.Prefix
	for i := range 3 {
		a := s.podAddr(ir.IPv4, fmt.Sprintf("pod %d of Deployment shop/web", i), "Deployment shop/web", i)
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	real := netip.MustParsePrefix("240.0.0.0/6")
	beside, _ := list[0].Addr().Prefix(12)
	around, _ := list[0].Addr().Prefix(24)
	got := s.Shown([]netip.Prefix{real, beside, around})
	if want := append([]netip.Prefix{real}, list...); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Manifests that no API server has seen have the same rules. The others remain.
func TestRejected(t *testing.T) {
	const ports = "ports: [{port: 80}]"
	var s StandIns
	snap, r := snapshot.New(), manifest.Reader{}
	r.Decode(snap, "f", []byte(service("web", ports)+service("words", "externalTrafficPolicy: local, type: NodePort, "+ports)+
		service("one", "type: NodePort, ports: [{port: 80, nodePort: 30000}]")+service("two", "type: NodePort, ports: [{port: 80, nodePort: 30000}]")+
		service("none", "type: ClusterIP, ports: [{port: 80, nodePort: 30001}]")+
		service("twice", "ports: [{name: a, port: 80}, {name: a, port: 81}]")+
		strings.Replace(service("real", "clusterIP: 10.96.0.1, externalTrafficPolicy: local, ports: [{port: 80, nodePort: 30000}]"), "name: real", "name: real, uid: u", 1)+
		workload("apps/v1", "Deployment", "web", "selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: wep}}}")), false)
	_, found := s.Complete(snap, r.Written(), "n1", nil)
	var got []string
	for _, d := range found {
		object, rest, _ := strings.Cut(strings.TrimPrefix(d.String(), "error: "), ": spec.")
		path, rest, _ := strings.Cut(rest, ": ")
		if !strings.Contains(rest, ": the API server rejects the ") {
			t.Error(d)
		}
		got = append(got, object+" "+path)
	}
	slices.Sort(got)
	want := []string{"Deployment shop/web selector", "Service shop/none ports[0].nodePort", "Service shop/one ports[0].nodePort",
		"Service shop/twice ports[1].name", "Service shop/two ports[0].nodePort", "Service shop/words externalTrafficPolicy"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if all := snap.Services(); len(all) != 2 || len(snap.Workloads()) != 0 || snap.InvalidService(ir.Name{Namespace: "shop", Name: "two"}) == nil {
		t.Errorf("%d Services remain, %d workloads", len(all), len(snap.Workloads()))
	}
}

// PreferDualStack has a second family if the cluster may have it, and the default is the cluster's.
func TestFamilies(t *testing.T) {
	const four, six = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n",
		"---\n{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [\"fd00::/64\"]}}\n"
	real := func(families string) string { return service("real", families+", ports: [{port: 80}]") }
	for _, tt := range []struct{ in, pods, want string }{
		{"", "", "IPv4 IPv6"},
		{four, "", "IPv4"},
		{"", "10.244.0.0/16", "IPv4"},
		{"", "10.244.0.0/16 fd00::/64", "IPv4 IPv6"},
		{four, "fd00::/64", "IPv4 IPv6"},
		{six, "fd00::/64", "IPv6"},
		{real("clusterIP: 10.96.0.1"), "", "IPv4"},
		{real("clusterIP: \"fd00::1\""), "", "IPv6"},
		{real("clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, \"fd00::1\"]"), "", "IPv4 IPv6"},
		{real("clusterIP: None, ipFamilies: [IPv4, IPv6]") + four, "", "IPv4"},
		{real("ipFamilies: [IPv6]") + four, "", "IPv4 IPv6"},
		{"---\n{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}\n", "fd00::/64", "IPv4"},
	} {
		var s StandIns
		snap, r := snapshot.New(), manifest.Reader{}
		r.Decode(snap, "f", []byte(tt.in+service("web", "ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]")), false)
		var pods []netip.Prefix
		for _, text := range strings.Fields(tt.pods) {
			pods = append(pods, netip.MustParsePrefix(text))
		}
		s.Complete(snap, r.Written(), "n1", pods)
		if got := strings.Join(snap.Service(ir.Name{Namespace: "shop", Name: "web"}).IPFamilies, " "); got != tt.want {
			t.Errorf("%s %s: got %s, want %s", tt.in, tt.pods, got, tt.want)
		}
	}
}

// A port keeps its stand-in with another name or another number, as in a cluster.
func TestNodePortStays(t *testing.T) {
	const both = "type: NodePort, ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}, {name: web, port: 80}]"
	var s StandIns
	of := func(spec string) (out []int32) {
		for _, p := range complete(t, &s, service("web", spec)).Services()[0].Ports {
			out = append(out, p.NodePort)
		}
		return out
	}
	first := of(both)
	if first[0] == first[1] || s.PortName(first[0]) != "of shop/web:53" || s.PortName(first[1]) != "of shop/web:53" {
		t.Errorf("node ports %v, %q", first, s.Names())
	}
	for _, spec := range []string{strings.Replace(both, "name: web", "name: http", 1), strings.Replace(both, "80", "8080", 1), strings.Replace(both, "dns-tcp", "tcp", 1), both} {
		of(both)
		if got := of(spec); !slices.Equal(got, first) {
			t.Errorf("%s: node ports %v, before %v", spec, got, first)
		}
	}
	if got := of("type: NodePort, ports: [{name: web, port: 53}, {name: a, port: 80}]"); got[0] != first[1] || got[1] != first[2] {
		t.Errorf("the number decides before the name: %v, before %v", got, first)
	}
}

// Pods run on Nodes that their workload tolerates and selects, and have the hints of the controller.
func TestPlaces(t *testing.T) {
	node := func(name, rest string) string {
		return fmt.Sprintf("---\n{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {topology.kubernetes.io/zone: z-%s%s, status: {addresses: [{type: InternalIP, address: 192.0.2.%s}]}}\n", name, name, rest, name[1:])
	}
	nodes := node("n1", "}}, spec: {taints: [{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}]}") +
		node("n2", ", role: edge}}, spec: {taints: [{key: soft, effect: PreferNoSchedule}, {key: node.kubernetes.io/unschedulable, effect: NoSchedule}]}") + node("n3", "}}")
	tests := []struct{ kind, spec, pod, service, want string }{
		{"DaemonSet", "", "", "", "n2 n3"},
		{"DaemonSet", "", "tolerations: [{operator: Exists}]", "", "n1 n2 n3"},
		{"DaemonSet", "", "tolerations: [{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}]", "", "n1 n2 n3"},
		{"DaemonSet", "", "tolerations: [{key: node-role.kubernetes.io/control-plane, effect: NoExecute, operator: Exists}]", "", "n2 n3"},
		{"DaemonSet", "", "nodeSelector: {role: edge}", "", "n2"},
		{"DaemonSet", "", "nodeSelector: {role: core}", "", ""},
		{"DaemonSet", "", "nodeSelector: {kubernetes.io/os: linux}", "", "n2 n3"}, // which the Nodes do not show
		{"DaemonSet", "", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: role, operator: DoesNotExist}]}]}}}", "", "n3"},
		{"DaemonSet", "", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n3]}]}, {matchExpressions: [{key: role, operator: In, values: [edge]}]}]}}}", "", "n2 n3"},
		{"Deployment", "replicas: 3, ", "", "", "n3 n3 n3"}, // n2 is cordoned
		{"Deployment", "replicas: 2, ", "nodeSelector: {role: core}", "", ""},
		{"Deployment", "replicas: 2, ", "nodeSelector: {topology.kubernetes.io/zone: z-n1}", "", ""}, // which has a taint
		{"Deployment", "replicas: 2, ", "nodeName: n1, nodeSelector: {role: core}", "", "n1 n1"},
		{"Deployment", "replicas: 5, ", "hostNetwork: true, tolerations: [{operator: Exists}]", "", "n1 n2 n3"},
		{"Deployment", "", "", "trafficDistribution: PreferClose, ", "n3[z-n3] []"},
		{"Deployment", "", "", "trafficDistribution: PreferSameNode, ", "n3[z-n3] [n3]"},
	}
	for _, tt := range tests {
		var s StandIns
		snap := complete(t, &s, nodes+service("web", tt.service+"selector: {app: web}, ports: [{port: 80}]")+
			workload("apps/v1", tt.kind, "web", tt.spec+"template: {metadata: {labels: {app: web}}, spec: {"+tt.pod+"}}"))
		var got []string
		for _, slice := range snap.Slices(ir.Name{Namespace: "shop", Name: "web"}) {
			for _, e := range slice.Endpoints {
				text := e.NodeName
				if e.Hints != nil {
					text += fmt.Sprint(e.ZoneHints(), e.NodeHints())
				}
				got = append(got, text)
			}
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s {%s%s}: pods on %s, want %s", tt.kind, tt.spec, tt.pod, got, tt.want)
		}
	}
}

// Without Nodes, a pod on the network of its node has the address that the Node gets.
func TestHostNetworkWithoutNodes(t *testing.T) {
	var s StandIns
	snap := complete(t, &s, service("web", "selector: {app: web}, ports: [{port: 80}]")+
		workload("apps/v1", "Deployment", "web", "replicas: 2, template: {metadata: {labels: {app: web}}, spec: {hostNetwork: true}}"))
	s.Nodes(snap, "n1")
	pods := snap.Slices(ir.Name{Namespace: "shop", Name: "web"})[0].Endpoints
	if addrs := snap.Node("n1").Addresses; len(pods) != 1 || len(addrs) != 1 || pods[0].Address != addrs[0].Address || s.IsPod(pods[0].Addr) {
		t.Errorf("pods %v, node %v", pods, addrs)
	}
	// Another snapshot, with no Service, has the same.
	none := complete(t, &s, "")
	s.Nodes(none, "n1")
	if d := cmp.Diff(snap.Node("n1"), none.Node("n1"), cmp.AllowUnexported(netip.Prefix{})); d != "" {
		t.Errorf("the Node differs without Services:\n%s", d)
	}
	// A second family of another snapshot is added.
	complete(t, &s, service("web", "ipFamilies: [IPv6], ports: [{port: 80}]"))
	if s.Nodes(none, "n1"); len(none.Node("n1").Addresses) != 2 {
		t.Errorf("the Node has %v", none.Node("n1").Addresses)
	}
}

// Labels that controllers give pods when they run select them.
func TestRuntimeLabels(t *testing.T) {
	const template = "template: {metadata: {labels: {app: web}}}"
	set := workload("apps/v1", "StatefulSet", "web", "replicas: 3, "+template)
	later := workload("apps/v1", "StatefulSet", "web", "replicas: 2, ordinals: {start: 5}, "+template)
	job := workload("batch/v1", "Job", "web", "parallelism: 2, "+template)
	indexed := workload("batch/v1", "Job", "web", "parallelism: 2, completionMode: Indexed, "+template)
	cron := workload("batch/v1", "CronJob", "web", "jobTemplate: {spec: {"+template+"}}")
	for _, tt := range []struct{ load, selector, want string }{
		{set, "statefulset.kubernetes.io/pod-name: web-1", "web-1"},
		{set, "statefulset.kubernetes.io/pod-name: web-3", ""},
		{set, "statefulset.kubernetes.io/pod-name: wep-1", ""},
		{set, "app: web, apps.kubernetes.io/pod-index: \"2\"", "web-2"},
		{set, "statefulset.kubernetes.io/pod-name: web-1, apps.kubernetes.io/pod-index: \"2\"", ""},
		{set, "app: wep, apps.kubernetes.io/pod-index: \"2\"", ""},
		{set, "job-name: web", ""},
		{later, "app: web", "web-5 web-6"},
		{later, "apps.kubernetes.io/pod-index: \"6\"", "web-6"},
		{job, "job-name: web", "web-0 web-1"},
		{job, "batch.kubernetes.io/job-name: web, app: web", "web-0 web-1"},
		{job, "job-name: wep", ""},
		{job, "controller-uid: u", "web-0 web-1"},
		{job, "batch.kubernetes.io/job-completion-index: \"1\"", ""},
		{indexed, "batch.kubernetes.io/job-completion-index: \"1\"", "web-1"},
		{cron, "job-name: web-28000000", "web-0"},
		{cron, "job-name: other", ""},
	} {
		var s StandIns
		snap := complete(t, &s, tt.load+service("web", "selector: {"+tt.selector+"}, ports: [{port: 80}]"))
		var got []string
		for _, slice := range snap.Slices(ir.Name{Namespace: "shop", Name: "web"}) {
			for _, e := range slice.Endpoints {
				got = append(got, e.Pod)
			}
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.selector, got, tt.want)
		}
	}
}

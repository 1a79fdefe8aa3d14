package manifest

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// fullCluster is a cluster with a value in every field that is used.
const fullCluster = `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: ns, uid: u, creationTimestamp: "2026-01-02T03:04:05Z", labels: {team: x, service.kubernetes.io/service-proxy-name: cilium}, annotations: {preserve-destination: "true", winProxyOptimization: disabled, other: x, proxyc.dev/lint-ignore: PX501}}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, "fd00::1"], ipFamilies: [IPv4, IPv6], externalIPs: [192.0.2.1, ""], ports: [{name: web, port: 80, protocol: UDP, nodePort: 30080, targetPort: http}, {port: 81}], loadBalancerSourceRanges: [" 10.0.0.0/8"], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, internalTrafficPolicy: Local, externalTrafficPolicy: Local, healthCheckNodePort: 32000, selector: {app: web}, trafficDistribution: PreferClose, loadBalancerClass: example.com/internal, publishNotReadyAddresses: true, ipFamilyPolicy: PreferDualStack, allocateLoadBalancerNodePorts: false}, status: {loadBalancer: {ingress: [{ip: 203.0.113.1, ipMode: Proxy}, {hostname: x}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: b, namespace: ns}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, namespace: ns, labels: {kubernetes.io/service-name: a, service.kubernetes.io/headless: ""}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.1], nodeName: node1, targetRef: {kind: Pod, name: p}, hints: {forZones: [{name: z}], forNodes: [{name: node1}]}, conditions: {ready: false, serving: true, terminating: true}}, {addresses: [x]}], ports: [{name: web, port: 80}, {protocol: SCTP}]}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: c, namespace: ns}, subsets: [{addresses: [{ip: 10.1.0.1}, {ip: "fd00::2", nodeName: node1}, {ip: 10.1.0.3}], ports: [{port: 80}]}, {addresses: [{ip: 10.1.0.2, targetRef: {kind: Pod, name: q}}], ports: [{port: 81}]}]}
---
{apiVersion: v1, kind: Node, metadata: {name: node1, labels: {topology.kubernetes.io/zone: z}}, spec: {podCIDR: 10.1.0.0/24, taints: [{key: a, effect: NoSchedule}]}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}], nodeInfo: {kernelVersion: 6.1.0}}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: k}, spec: {cidrs: [10.0.0.0/16]}}
`

// decodedStrictly decodes with the fields that lint checks.
func decodedStrictly(t *testing.T, text string) (*snapshot.Snapshot, map[string]Written) {
	t.Helper()
	s, r := snapshot.New(), Reader{Strict: true}
	for _, d := range r.Decode(s, "file", []byte(text), false) {
		if strings.Contains(d.Msg, "left out") {
			t.Fatal(d)
		}
	}
	return s, r.Written()
}

// A Snapshot that is written as objects and decoded again is unchanged.
func TestObjectsOfDocument(t *testing.T) {
	s, _ := decodedStrictly(t, fullCluster)
	var out bytes.Buffer
	if err := s.Document().Objects().Write(&out); err != nil {
		t.Fatal(err)
	}
	again, _ := decodedStrictly(t, out.String())
	for _, svc := range again.Services() {
		svc.Created = s.Service(svc.Name).Created // the same time in another zone
	}
	if dirty := again.Update(s); !dirty.Empty() {
		t.Errorf("differs in %+v: %s", dirty, out.String())
	}
}

// Trim preserves the fields that decide about packets and those that lint checks.
// Every field that it removes is unused.
func TestTrim(t *testing.T) {
	s, written := decodedStrictly(t, fullCluster)
	var all snapshot.Objects
	for _, svc := range cluster(3, 2, 2) {
		before, err := snapshot.Line(svc)
		if err != nil {
			t.Fatal(err)
		}
		all.Add(snapshot.Trim(svc))
		if after, _ := snapshot.Line(svc); !bytes.Equal(before, after) {
			t.Errorf("Trim changed %s", before)
		}
	}
	if len(all.Services) != 3 || len(all.Slices) != 3 || len(all.Nodes) != 2 {
		t.Fatalf("%d Services, %d slices, %d Nodes", len(all.Services), len(all.Slices), len(all.Nodes))
	}
	var out bytes.Buffer
	objects := s.Document().Objects()
	objects.Endpoints = nil
	svc := objects.Services[0]
	svc.Spec.Selector, svc.Spec.AllocateLoadBalancerNodePorts = map[string]string{"app": "web"}, new(false)
	svc.Spec.TrafficDistribution, svc.Spec.IPFamilyPolicy = new("PreferClose"), new(corev1.IPFamilyPolicyPreferDualStack)
	svc.UID, svc.Spec.Ports[0].TargetPort = "u", intstr.FromString("http")
	svc.Annotations[snapshot.AnnotationIgnore], svc.Annotations["other"] = "PX501", "x"
	svc.Annotations["winProxyOptimization"] = "disabled"
	svc.Labels = map[string]string{snapshot.LabelProxyName: "cilium", "team": "x"}
	svc.Spec.LoadBalancerClass, svc.Spec.PublishNotReadyAddresses = new("example.com/internal"), true
	objects.Nodes[0].Status.NodeInfo.KernelVersion, objects.Nodes[0].Spec.Taints = "6.1.0", []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
	trimmed := snapshot.Objects{}
	for _, o := range []any{svc, objects.Services[1], objects.Slices[0], objects.Nodes[0], objects.ServiceCIDRs[0]} {
		trimmed.Add(snapshot.Trim(o))
	}
	if err := trimmed.Write(&out); err != nil {
		t.Fatal(err)
	}
	_, again := decodedStrictly(t, out.String())
	delete(written, "Endpoints ns/c")
	for _, all := range []map[string]Written{written, again} {
		for object, w := range all {
			w.Labels, w.Order = nil, 0
			all[object] = w
		}
	}
	if !reflect.DeepEqual(written, again) {
		t.Errorf("lint sees %+v, want %+v", again, written)
	}
}

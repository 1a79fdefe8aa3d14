package snapshot_test

import (
	"encoding/json"
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// A Document contains the whole Snapshot, also after encoding to JSON.
func TestDocument(t *testing.T) {
	s := decoded(t, `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: ns, creationTimestamp: "2026-01-02T03:04:05Z"}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, externalIPs: [192.0.2.1], ports: [{port: 80, nodePort: 30080}], loadBalancerSourceRanges: [10.0.0.0/8]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, namespace: ns, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.1], nodeName: node1, hints: {forZones: [{name: z}]}, conditions: {ready: false}}, {addresses: [x]}], ports: [{port: 80}]}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: c, namespace: ns}, subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 80}]}, {addresses: [{ip: 10.1.0.2}], ports: [{port: 81}]}]}
---
{apiVersion: v1, kind: Node, metadata: {name: node1, labels: {topology.kubernetes.io/zone: z}}, spec: {podCIDR: 10.1.0.0/24}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: k}, spec: {cidrs: [10.0.0.0/16]}}
`)
	text, err := json.Marshal(s.Document())
	if err != nil {
		t.Fatal(err)
	}
	var d snapshot.Document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	again := d.Snapshot()
	for _, svc := range again.Services() {
		svc.Created = s.Service(svc.Name).Created // the same time in another zone
	}
	if dirty := again.Update(s); !dirty.Empty() {
		t.Errorf("differs in %+v", dirty)
	}
	if made := again.Slices(ir.Name{Namespace: "ns", Name: "c"}); len(made) != 2 {
		t.Errorf("%d slices of Endpoints, want 2", len(made))
	}
}

package snapshot_test

import (
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

func TestPod(t *testing.T) {
	s := snapshot.New()
	diags := manifest.Decode(s, "slices.yaml", []byte(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 80, protocol: TCP}]
endpoints:
- {addresses: [10.244.1.10], nodeName: node1, targetRef: {kind: Pod, namespace: shop, name: web-a}}
- {addresses: [10.244.1.11], nodeName: node1, targetRef: {kind: Machine, name: web-b}}
- {addresses: [10.244.1.12], nodeName: node1}
---
apiVersion: v1
kind: Endpoints
metadata: {namespace: shop, name: old}
subsets:
- addresses: [{ip: "fd00:10:244:2::10", nodeName: node2, targetRef: {kind: Pod, namespace: shop, name: web-a}}]
  ports: [{port: 80, protocol: TCP}]
`))
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	for _, test := range []struct {
		pod    ir.Name
		family ir.Family
		want   string
	}{
		{ir.Name{Namespace: "shop", Name: "web-a"}, ir.IPv4, "10.244.1.10 node1"},
		{ir.Name{Namespace: "shop", Name: "web-a"}, ir.IPv6, "fd00:10:244:2::10 node2"},
		{ir.Name{Namespace: "shop", Name: "web-b"}, ir.IPv4, ""},
		{ir.Name{Namespace: "shop", Name: ""}, ir.IPv4, ""},
		{ir.Name{Namespace: "other", Name: "web-a"}, ir.IPv4, ""},
	} {
		got := ""
		if addr, node, ok := s.Pod(test.pod, test.family); ok {
			got = addr.String() + " " + node
		}
		if got != test.want {
			t.Errorf("Pod(%s, %s) = %q, want %q", test.pod, test.family, got, test.want)
		}
	}
}

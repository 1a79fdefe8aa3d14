package snapshot_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

func TestUpdate(t *testing.T) {
	const base = `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: ns}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: b, namespace: ns}, spec: {clusterIP: 10.0.0.2, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, namespace: ns, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.1]}], ports: [{port: 80}]}
---
{apiVersion: v1, kind: Node, metadata: {name: node1}}
---
`
	a, b, c := ir.Name{Namespace: "ns", Name: "a"}, ir.Name{Namespace: "ns", Name: "b"}, ir.Name{Namespace: "ns", Name: "c"}
	for _, tc := range []struct {
		name, to string
		want     snapshot.Dirty
	}{
		{name: "nothing", to: base},
		{"Service changes", base + `{apiVersion: v1, kind: Service, metadata: {name: b, namespace: ns}, spec: {clusterIP: 10.0.0.2, ports: [{port: 81}]}}`,
			snapshot.Dirty{Services: []ir.Name{b}, ServiceObjects: 1}},
		{"Service comes", base + `{apiVersion: v1, kind: Service, metadata: {name: c, namespace: ns}, spec: {clusterIP: 10.0.0.3, ports: [{port: 81}]}}`,
			snapshot.Dirty{Services: []ir.Name{c}, ServiceObjects: 1}},
		{"slice moves", base + `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, namespace: ns, labels: {kubernetes.io/service-name: b}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.1]}], ports: [{port: 80}]}`,
			snapshot.Dirty{Services: []ir.Name{a, b}, SliceObjects: 1}},
		{"Endpoints come", base + `{apiVersion: v1, kind: Endpoints, metadata: {name: c, namespace: ns}, subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 80}]}]}`,
			snapshot.Dirty{Services: []ir.Name{c}, SliceObjects: 1}},
		{"Node changes", base + `{apiVersion: v1, kind: Node, metadata: {name: node1, labels: {topology.kubernetes.io/zone: z}}}`,
			snapshot.Dirty{Node: true}},
		{"ServiceCIDR comes", base + `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: k}, spec: {cidrs: [10.0.0.0/16]}}`,
			snapshot.Dirty{Node: true}},
		{"all goes", "", snapshot.Dirty{Services: []ir.Name{a, b}, Node: true, ServiceObjects: 2, SliceObjects: 1, ServicesGone: 2, SlicesGone: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, to := decoded(t, base), decoded(t, tc.to)
			got := s.Update(to)
			slices.SortFunc(got.Services, ir.Name.Compare)
			got.Services = slices.Compact(got.Services)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("dirty (-want +got):\n%s", diff)
			}
			if again := s.Update(to); !again.Empty() {
				t.Errorf("a second update still finds %v", again)
			}
		})
	}
}

func decoded(t *testing.T, text string) *snapshot.Snapshot {
	t.Helper()
	s := snapshot.New()
	if diags := manifest.Decode(s, "test", []byte(text)); diags.HasErrors() {
		t.Fatal(diags)
	}
	return s
}

func TestReplace(t *testing.T) {
	name := func(n string) ir.Name { return ir.Name{Namespace: "ns", Name: n} }
	s := snapshot.New()
	s.SetService(&snapshot.Service{Name: name("a")})
	s.SetSlice(&snapshot.EndpointSlice{Name: name("a-1"), Service: name("a")})
	if d := s.ReplaceServices([]*snapshot.Service{{Name: name("a")}, {Name: name("b")}}); !slices.Equal(d.Services, []ir.Name{name("b")}) {
		t.Errorf("ReplaceServices: dirty %v, want ns/b", d.Services)
	}
	if d := s.ReplaceSlices(nil); !slices.Equal(d.Services, []ir.Name{name("a")}) || s.Slice(name("a-1")) != nil {
		t.Errorf("ReplaceSlices: dirty %v, want ns/a", d.Services)
	}
	if d := s.ReplaceServiceCIDRs([]*snapshot.ServiceCIDR{{Name: "k"}}); !d.Node || len(s.ServiceCIDRs()) != 1 {
		t.Errorf("ReplaceServiceCIDRs: %v, want the node dirty", d)
	}
	if len(s.Services()) != 2 {
		t.Errorf("%d Services are left, want 2", len(s.Services()))
	}
}

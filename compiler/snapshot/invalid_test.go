package snapshot_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// An invalid object is recorded with its reason and copied with the Snapshot. It
// is no longer listed if an object of its name exists, in whatever order they are
// decoded.
func TestInvalid(t *testing.T) {
	const (
		two  = "apiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: b}\nspec: {clusterIP: 10.0.0.2, externalIPs: [192.0.2.2, x], ports: [{port: x, nodePort: 30080}]}\n"
		good = "apiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: b}\nspec: {clusterIP: 10.0.0.2, ports: [{port: 80}]}\n"
		ends = "apiVersion: v1\nkind: Endpoints\nmetadata: {namespace: ns, name: b}\nsubsets: {}\n"
	)
	decoded := func(texts ...string) *snapshot.Snapshot {
		s := snapshot.New()
		for _, text := range texts {
			manifest.Decode(s, "f", []byte(text))
		}
		return s
	}
	wantB := []*snapshot.Invalid{{
		Object: "Service ns/b", Service: ir.Name{Namespace: "ns", Name: "b"}, NodePorts: []int32{30080},
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("192.0.2.2")},
	}}
	wantEnds := []*snapshot.Invalid{{Object: "Endpoints ns/b", Service: ir.Name{Namespace: "ns", Name: "b"}}}
	copied := snapshot.New()
	copied.Update(decoded(two))
	for name, tt := range map[string]struct {
		s    *snapshot.Snapshot
		want []*snapshot.Invalid
	}{
		"one":          {decoded(two), wantB},
		"good after":   {decoded(two, good), nil},
		"good before":  {decoded(good, two), nil},
		"another kind": {decoded(good, ends), wantEnds},
		"updated":      {copied, wantB},
		"a document":   {decoded(two).Document().Snapshot(), wantB},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.s.Invalid(), cmpopts.IgnoreFields(snapshot.Invalid{}, "Why"), cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Error("-want +got", diff)
			}
		})
	}
	const why = "f:4:67: spec.ports[0].port: must be a whole number, got string"
	if got := decoded(two).InvalidService(ir.Name{Namespace: "ns", Name: "b"}).Why; got != why {
		t.Errorf("why: %s\nwant %s", got, why)
	}
	copied.Update(decoded(good))
	if left := copied.Invalid(); len(left) > 0 {
		t.Errorf("after it was mended: %+v", left[0])
	}
}

// TestKeep: of an object that cannot be decoded the version before stays, unless another file has a good one.
func TestKeep(t *testing.T) {
	decode := func(files ...string) *snapshot.Snapshot {
		s := snapshot.New()
		reader := manifest.Reader{NoPositions: true}
		for _, text := range files {
			reader.Decode(s, "f.yaml", []byte(text), false)
		}
		return s
	}
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: ns}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]\n"
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nspec: {podCIDR: 10.244.1.0/24}\n"
	const cidr = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16]}\n"
	broken := strings.NewReplacer("port: 80}", "port: x}", "port: 8080}", "port: x}", "podCIDR: 10.244.1.0/24", "podCIDR: 1", "cidrs: [10.96.0.0/16]", "cidrs: 1")
	good := strings.Join([]string{service, slice, node, cidr}, "---\n")
	old, name := decode(good), ir.Name{Namespace: "ns", Name: "web"}

	kept := decode(broken.Replace(good))
	if len(kept.Invalid()) != 4 || kept.Service(name) != nil {
		t.Fatalf("invalid: %d objects, want 4", len(kept.Invalid()))
	}
	kept.Keep(old, nil, nil)
	if kept.Service(name) == nil || len(kept.Slices(name)) != 1 || kept.Node("node1") == nil || kept.ServiceCIDR("kubernetes") == nil {
		t.Errorf("kept Service %v, %d slices, Node %v, ServiceCIDR %v", kept.Service(name), len(kept.Slices(name)), kept.Node("node1"), kept.ServiceCIDR("kubernetes"))
	}

	misspelt := decode(strings.Replace(service, "kind: Service", "kind: Servce", 1))
	misspelt.Keep(old, nil, nil)
	if misspelt.Service(name) == nil {
		t.Error("a Service whose kind is misspelt was not kept")
	}

	changed := decode(strings.Replace(service, "10.96.0.1", "10.96.0.2", 1), broken.Replace(service))
	changed.Keep(old, nil, nil)
	if got := changed.Service(name).ClusterIP; got != "10.96.0.2" {
		t.Errorf("clusterIP %s, want that of the good version", got)
	}

	gone := decode(node)
	gone.Keep(old, nil, nil)
	if gone.Service(name) != nil {
		t.Error("a Service that no file has was kept")
	}
}

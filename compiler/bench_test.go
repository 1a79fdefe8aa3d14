package compiler

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// manyServices returns a snapshot of plain ClusterIP Services, each with the
// given number of endpoints.
func manyServices(services, endpoints int) *snapshot.Snapshot {
	snap := snapshot.New()
	snap.SetNode(&snapshot.Node{Name: "node1", Zone: "zone-a", Addresses: []snapshot.NodeAddress{{Type: "InternalIP", Address: "192.0.2.11"}}})
	vip, pod := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.128.0.1")
	for i := range services {
		name := ir.Name{Namespace: fmt.Sprintf("ns-%02d", i%50), Name: fmt.Sprintf("svc-%05d", i)}
		snap.SetService(&snapshot.Service{Name: name, Object: "Service " + name.String(), Type: "ClusterIP",
			ClusterIP: vip.String(), ClusterIPs: []string{vip.String()}, IPFamilies: []string{"IPv4"},
			Ports: []snapshot.ServicePort{{Name: "p0", Protocol: "TCP", Port: 80}}})
		vip = vip.Next()
		slice := &snapshot.EndpointSlice{Name: ir.Name{Namespace: name.Namespace, Name: name.Name + "-1"}, Service: name, AddressType: "IPv4",
			Object: "EndpointSlice " + name.String() + "-1",
			Ports:  []snapshot.EndpointPort{{Name: "p0", Protocol: "TCP", Port: 8080, HasName: true, HasPort: true}}}
		for j := range endpoints {
			slice.Endpoints = append(slice.Endpoints, snapshot.Endpoint{Address: pod.String(), Addr: pod,
				NodeName: fmt.Sprintf("node%d", j%20), Ready: true, Serving: true})
			pod = pod.Next()
		}
		snap.SetSlice(slice)
	}
	return snap
}

// BenchmarkCompile compiles Services of 10 endpoints each.
func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		snap := manyServices(n, 10)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p, _ := Compile(newConfig("nftables"), snap, Facts{NodeName: "node1"}); len(p.IPv4.Services) != n {
					b.Fatalf("got %d Services, want %d", len(p.IPv4.Services), n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/service")
		})
	}
}

// BenchmarkUpdate changes one endpoint of one Service among many.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1_000, 50_000} {
		snap := manyServices(n, 10)
		c := New(newConfig("nftables"), snap, Facts{NodeName: "node1"})
		name := ir.Name{Namespace: "ns-07", Name: "svc-00107"}
		old := snap.Slices(name)[0]
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			ready := false
			for b.Loop() {
				slice := *old
				slice.Endpoints = append([]snapshot.Endpoint(nil), old.Endpoints...)
				slice.Endpoints[3].Ready = ready
				ready = !ready
				if got, _ := c.Update(snap.SetSlice(&slice)); len(got.IPv4) != 1 {
					b.Fatalf("got %d changes, want 1", len(got.IPv4))
				}
			}
		})
	}
}

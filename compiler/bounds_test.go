package compiler

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

func manyPorts(n int, nodePorts bool) change {
	return func(s *snapshot.Service) {
		s.Ports = nil
		for i := range n {
			p := snapshot.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: "TCP", Port: int32(1 + i)}
			if nodePorts {
				p.NodePort = int32(1 + i)
			}
			s.Ports = append(s.Ports, p)
		}
	}
}

func addresses(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s.%d.%d", prefix, i/250, 1+i%250))
	}
	return all
}

func networks(n int) []string {
	all := addresses("198.18", n)
	for i := range all {
		all[i] += "/32"
	}
	return all
}

// Ports times addresses, and times source ranges, are limited. Whole addresses
// are ignored, and one finding names them. Other numbers are not limited.
func TestServiceBounds(t *testing.T) { // ports (SNAP-21), external IPs (SNAP-22), load balancer addresses (SNAP-23)
	for _, tc := range []struct {
		name  string
		svc   object
		want  map[ir.Kind]int // frontends
		diags []string
	}{
		{"what fits", newService("web", manyPorts(100, true), externalIPs(addresses("198.18", 98)...)),
			map[ir.Kind]int{ir.ClusterIP: 100, ir.NodePort: 100, ir.ExternalIP: 9800}, nil},
		{"one address too many", newService("web", manyPorts(100, true), externalIPs(addresses("198.18", 99)...)),
			map[ir.Kind]int{ir.ClusterIP: 100, ir.NodePort: 100, ir.ExternalIP: 9800},
			[]string{"error: Service ns/web: spec.externalIPs[98]: 198.18.0.99 is ignored, with 100 ports each: a Service can have at most 10000 frontends in IPv4"}},
		{"a million", newService("web", manyPorts(1000, false), externalIPs(addresses("198.18", 1000)...)),
			map[ir.Kind]int{ir.ClusterIP: 1000, ir.ExternalIP: 9000},
			[]string{"error: Service ns/web: spec.externalIPs[9]: 198.18.0.10 and 990 more addresses are ignored, with 1000 ports each: a Service can have at most 10000 frontends in IPv4"}},
		{"load balancers go before external IPs", newService("web", manyPorts(4000, false), externalIPs("198.18.0.1"), loadBalancer("203.0.113.1")),
			map[ir.Kind]int{ir.ClusterIP: 4000, ir.LoadBalancer: 4000},
			[]string{"error: Service ns/web: spec.externalIPs[0]: 198.18.0.1 is ignored, with 4000 ports each: a Service can have at most 10000 frontends in IPv4"}},
		{"ports alone", newService("web", manyPorts(20_000, true)), map[ir.Kind]int{ir.ClusterIP: 20_000, ir.NodePort: 20_000}, nil},
		{"source ranges of one port", newService("web", loadBalancer("203.0.113.1"), ranges(networks(16_000)...)),
			map[ir.Kind]int{ir.ClusterIP: 1, ir.LoadBalancer: 1}, nil},
		{"source ranges of many ports", newService("web", manyPorts(100, false), loadBalancer("203.0.113.1", "203.0.113.2"), ranges(networks(150)...)),
			map[ir.Kind]int{ir.ClusterIP: 100, ir.LoadBalancer: 100},
			[]string{"error: Service ns/web: status.loadBalancer.ingress[1].ip: 203.0.113.2 is ignored, with 100 ports each: " +
				"a Service can have at most 10000 frontends and 20000 source ranges of frontends in IPv4"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			programs, diags := compileFor(t, newConfig(ir.ModeNFTables), tc.svc)
			got := map[ir.Kind]int{}
			for _, s := range programs.IPv4.Services {
				for _, f := range s.Frontends {
					got[f.Kind]++
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("frontends (-want +got):\n%s", d)
			}
			diags = slices.DeleteFunc(diags, func(d diag.Diagnostic) bool { return d.Code == diag.DearService })
			if d := cmp.Diff(tc.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

// A small object does not use all memory of a node.
func TestServiceBoundsMemory(t *testing.T) {
	const most = 60 << 20 // bytes
	svc := newService("web", manyPorts(1000, false), externalIPs(addresses("198.18", 1000)...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	compileFor(t, newConfig(ir.ModeNFTables), svc)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("a Service of 1,000 ports and 1,000 external IPs takes %d MiB, want at most %d", took>>20, most>>20)
	}
}

// manyEndpoints adds slices of 100 endpoints each to a snapshot, with ports named
// as by manyPorts.
func manyEndpoints(ports, n int) object {
	return func(s *snapshot.Snapshot) {
		for i := 0; i < n; i += 100 {
			slice := &snapshot.EndpointSlice{Name: ns(fmt.Sprintf("web-%d", i)), Object: fmt.Sprintf("EndpointSlice ns/web-%d", i),
				Service: ns("web"), AddressType: "IPv4"}
			for p := range ports {
				slice.Ports = append(slice.Ports, snapshot.EndpointPort{Name: fmt.Sprintf("p%d", p), Protocol: "TCP", Port: 8080, HasName: true, HasPort: true})
			}
			for j := i; j < min(i+100, n); j++ {
				slice.Endpoints = append(slice.Endpoints, snapshot.Endpoint{Address: fmt.Sprintf("10.%d.%d.%d", 1+j/62500, j/250%250, 1+j%250),
					Ready: true, Serving: true})
			}
			s.SetSlice(slice)
		}
	}
}

// Ports times endpoints, at each address, are limited. Addresses are ignored
// first, then the endpoints of the last ports, which reject connections.
func TestServiceBackendBounds(t *testing.T) { // ports of slices (SNAP-41)
	type counts struct{ frontends, backends, refuse int }
	for _, tc := range []struct {
		name             string
		mode             ir.Mode
		change           []change
		ports, endpoints int
		want             counts
		diags            []string
	}{
		{"what real clusters have", ir.ModeIPVS, []change{loadBalancer("203.0.113.1", "203.0.113.2"), manyPorts(10, true)}, 10, 5000, counts{40, 200_000, 0}, nil},
		{"a million", ir.ModeNFTables, []change{manyPorts(1000, false)}, 1000, 1000, counts{1000, 100_000, 900},
			[]string{"error: Service ns/web: spec.ports[100]: its endpoints and those of 899 more ports are ignored, and connections are rejected: this Service can have at most 100000 backends of frontends in IPv4"}},
		{"of two families, with affinity and policies", ir.ModeNFTables, []change{manyPorts(200, false), clusterIP("10.96.0.10", "fd00:96::10"), func(s *snapshot.Service) { s.AffinityIP, s.AffinitySecs, s.InternalLocal = true, 60, true }}, 200, 100, counts{200, 0, 200},
			[]string{"error: Service ns/web: spec.ports[62]: its endpoints and those of 137 more ports are ignored, and connections are rejected: this Service can have at most 6250 backends of frontends in IPv4"}},
		{"frontends share backends", ir.ModeNFTables, []change{manyPorts(100, true), externalIPs(addresses("198.18", 30)...)}, 100, 1000, counts{3200, 3_200_000, 0}, nil},
		{"in mode iptables, too", ir.ModeIPTables, []change{manyPorts(100, true), externalIPs(addresses("198.18", 30)...)}, 100, 1000, counts{3200, 3_200_000, 0}, nil},
		{"node ports count", ir.ModeIPVS, []change{manyPorts(1000, true)}, 1000, 1000, counts{2000, 500_000, 1500},
			[]string{"error: Service ns/web: spec.ports[250]: its endpoints and those of 749 more ports are ignored, and connections are rejected: this Service can have at most 500000 backends of frontends in IPv4"}},
		{"addresses first", ir.ModeIPVS, []change{manyPorts(100, false), externalIPs(addresses("198.18", 99)...)}, 100, 1000, counts{500, 500_000, 0},
			[]string{"error: Service ns/web: spec.externalIPs[4]: 198.18.0.5 and 94 more addresses are ignored, with 100 ports each: a Service can have at most 10000 frontends and 500000 backends of frontends in IPv4"}},
		{"one port is no product", ir.ModeIPVS, []change{manyPorts(1, false)}, 1, 500_100, counts{1, 500_100, 0}, nil},
		{"ports without endpoints", ir.ModeIPVS, []change{manyPorts(9000, false)}, 1, 60_000, counts{9000, 60_000, 8999}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			programs, diags := compileFor(t, newConfig(tc.mode), newService("web", tc.change...), manyEndpoints(tc.ports, tc.endpoints))
			var got counts
			for _, s := range programs.IPv4.Services {
				for _, f := range s.Frontends {
					got.frontends++
					if len(f.Routes) == 0 {
						got.refuse++
						continue
					}
					got.backends += len(s.Pools[f.Routes[0].Pool].Backends)
				}
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(counts{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

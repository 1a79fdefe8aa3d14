package compiler

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// Ports times addresses, and times source ranges, are bounded: whole addresses
// are left out, and one finding says which. What is no product is not cut.
func TestServiceBounds(t *testing.T) { // SNAP-21, SNAP-22, SNAP-23
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
			[]string{"error: Service ns/web: spec.externalIPs[98]: 198.18.0.99 is left out, with 100 ports each: a Service can have at most 10000 frontends in IPv4"}},
		{"a million", newService("web", manyPorts(1000, false), externalIPs(addresses("198.18", 1000)...)),
			map[ir.Kind]int{ir.ClusterIP: 1000, ir.ExternalIP: 9000},
			[]string{"error: Service ns/web: spec.externalIPs[9]: 198.18.0.10 and 990 more addresses are left out, with 1000 ports each: a Service can have at most 10000 frontends in IPv4"}},
		{"load balancers go before external IPs", newService("web", manyPorts(4000, false), externalIPs("198.18.0.1"), loadBalancer("203.0.113.1")),
			map[ir.Kind]int{ir.ClusterIP: 4000, ir.LoadBalancer: 4000},
			[]string{"error: Service ns/web: spec.externalIPs[0]: 198.18.0.1 is left out, with 4000 ports each: a Service can have at most 10000 frontends in IPv4"}},
		{"ports alone", newService("web", manyPorts(20_000, true)), map[ir.Kind]int{ir.ClusterIP: 20_000, ir.NodePort: 20_000}, nil},
		{"source ranges of one port", newService("web", loadBalancer("203.0.113.1"), ranges(networks(16_000)...)),
			map[ir.Kind]int{ir.ClusterIP: 1, ir.LoadBalancer: 1}, nil},
		{"source ranges of many ports", newService("web", manyPorts(100, false), loadBalancer("203.0.113.1", "203.0.113.2"), ranges(networks(1500)...)),
			map[ir.Kind]int{ir.ClusterIP: 100, ir.LoadBalancer: 100},
			[]string{"error: Service ns/web: status.loadBalancer.ingress[1].ip: 203.0.113.2 is left out, with 100 ports each: " +
				"a Service can have at most 10000 frontends and 200000 source ranges of frontends in IPv4"}},
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
			if d := cmp.Diff(tc.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

// A small object does not take the memory of a node.
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

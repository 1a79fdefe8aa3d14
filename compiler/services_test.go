package compiler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const web80 = "ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1 any→10.1.0.1+snat"

var webSlice = slice("web-1", "10.1.0.1")

func TestWhichServicesAreSeen(t *testing.T) {
	run(t, []row{
		{name: "a ClusterIP Service", objects: []object{newService("web"), webSlice}, want: []string{web80}},
		{name: "type empty counts as ClusterIP",
			objects: []object{newService("web", func(s *snapshot.Service) { s.Type = "" }), webSlice}, want: []string{web80}},
		{name: "SNAP-1 not those of another proxy",
			objects: []object{newService("web", func(s *snapshot.Service) { s.ProxyName = true }), webSlice}},
		{name: "SNAP-2 not headless slices",
			objects: []object{newService("web"), editSlice("web-1", func(e *snapshot.EndpointSlice) { e.Headless = true }, "10.1.0.1")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp reject"}},
		{name: "SNAP-3 not headless Services, whatever fields are left over",
			objects: []object{newService("web", nodePort(30080), func(s *snapshot.Service) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} }), webSlice}},
		{name: "SNAP-3 not Services without an address",
			objects: []object{newService("web", func(s *snapshot.Service) { s.ClusterIP, s.ClusterIPs = "", nil }), webSlice}},
		{name: "SNAP-3 not ExternalName",
			objects: []object{newService("web", externalIPs("198.18.0.1"), func(s *snapshot.Service) { s.Type = "ExternalName" }), webSlice}},
		{name: "SNAP-4 a slice without a Service name is nobody's",
			objects: []object{newService("web"), webSlice,
				editSlice("web-2", func(e *snapshot.EndpointSlice) { e.Service = ir.Name{} }, "10.1.0.2")},
			want: []string{web80}},
		{name: "SNAP-5 only slices of the family",
			objects: []object{newService("web"), webSlice,
				editSlice("web-2", func(e *snapshot.EndpointSlice) { e.AddressType = "FQDN" }, "example.org"),
				editSlice("web-3", func(e *snapshot.EndpointSlice) { e.AddressType = "IPv6" }, "fd00:10:1::1")},
			want: []string{web80}},
		{name: "SNAP-41 a second port of one name in a slice, which the API server refuses, is left out",
			objects: []object{newService("web"), webSlice,
				editSlice("web-2", func(e *snapshot.EndpointSlice) {
					e.Ports = append(e.Ports, snapshot.EndpointPort{Port: 8081, HasName: true, HasPort: true}, snapshot.EndpointPort{Protocol: "UDP", Port: 8082, HasName: true, HasPort: true})
				}, "10.1.0.2")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1,10.1.0.2 any→10.1.0.1,10.1.0.2+snat"},
			diags: []string{`error: EndpointSlice ns/web-2: ports[1].name: "" is the name of ports[0] too: the port is ignored`,
				`error: EndpointSlice ns/web-2: ports[2].name: "" is the name of ports[0] too: the port is ignored`}},
		{name: "SNAP-5 an address of the wrong family is left out",
			objects: []object{newService("web"), slice("web-1", "10.1.0.1", "fd00:10:1::1")},
			want:    []string{web80},
			diags:   []string{`error: EndpointSlice ns/web-1: endpoints[1].addresses[0]: must be IPv4 as addressType says, got "fd00:10:1::1"`}},
		{name: "SNAP-6 slices wait for their Service", objects: []object{webSlice}},
		{name: "SNAP-6 in any order", objects: []object{webSlice, newService("web")}, want: []string{web80}},
	})
}

func TestServicePorts(t *testing.T) {
	dual := clusterIP("10.96.0.10", "fd00:10:96::10")
	run(t, []row{
		{name: "SNAP-20 by family: each has its own endpoints",
			objects: []object{newService("web", dual), webSlice},
			want:    []string{web80, "ClusterIP [fd00:10:96::10]:80/tcp reject"}},
		{name: "SNAP-20 without ipFamilies clusterIP counts",
			objects: []object{newService("web", func(s *snapshot.Service) { s.IPFamilies, s.ClusterIPs = nil, nil }), webSlice},
			want:    []string{web80}},
		{name: "SNAP-20 without ipFamilies clusterIPs do not count",
			objects: []object{newService("web", dual, func(s *snapshot.Service) { s.IPFamilies = nil }), webSlice},
			want:    []string{web80}},
		{name: "SNAP-20 zeros before numbers are borne",
			objects: []object{newService("web", func(s *snapshot.Service) { s.ClusterIPs = []string{"010.096.000.010"} }), webSlice},
			want:    []string{web80}},
		{name: "SNAP-20 an address that is none",
			objects: []object{newService("web", func(s *snapshot.Service) { s.ClusterIPs = []string{"ten"} }), webSlice},
			diags:   []string{`error: Service ns/web: spec.clusterIPs[0]: must be an IP address, got "ten"`}},
		{name: "SNAP-20 a family without an address",
			objects: []object{newService("web", func(s *snapshot.Service) { s.IPFamilies = []string{"IPv4", "IPv6"} }), webSlice},
			want:    []string{web80},
			diags:   []string{`error: Service ns/web: spec.ipFamilies[1]: IPv6 has no address: there is no spec.clusterIPs[1]`}},
		{name: "SNAP-20 an address that is not of the family",
			objects: []object{newService("web", func(s *snapshot.Service) { s.IPFamilies = []string{"IPv6"} }), webSlice},
			diags:   []string{`error: Service ns/web: spec.clusterIPs[0]: must be IPv6 as spec.ipFamilies has it, got "10.96.0.10"`}},
		{name: "SNAP-21 protocols; targetPort is not read",
			objects: []object{
				newService("dns", ports(snapshot.ServicePort{Name: "t", Port: 53}, snapshot.ServicePort{Name: "u", Protocol: "UDP", Port: 53},
					snapshot.ServicePort{Name: "s", Protocol: "SCTP", Port: 53})),
				editSlice("dns-1", func(e *snapshot.EndpointSlice) {
					e.Ports = []snapshot.EndpointPort{{Name: "t", Port: 8080, HasName: true, HasPort: true},
						{Name: "u", Protocol: "UDP", Port: 5353, HasName: true, HasPort: true}, {Name: "s", Protocol: "TCP", Port: 9, HasName: true, HasPort: true}}
				}, "10.1.0.1")},
			want: []string{
				"ClusterIP 10.96.0.10:53/tcp pods→10.1.0.1 any→10.1.0.1+snat",
				"ClusterIP 10.96.0.10:53/udp pods→10.1.0.1:5353 any→10.1.0.1:5353+snat",
				"ClusterIP 10.96.0.10:53/sctp reject"}},
		{name: "SNAP-21 bad ports are left out, the rest goes on",
			objects: []object{newService("web", ports(snapshot.ServicePort{Port: 80}, snapshot.ServicePort{Name: "a", Protocol: "ICMP", Port: 1},
				snapshot.ServicePort{Name: "b", Port: 65536}, snapshot.ServicePort{Name: "c", Port: 81, NodePort: -1}, snapshot.ServicePort{Name: "d", Port: 80})), webSlice},
			want: []string{web80, "ClusterIP 10.96.0.10:81/tcp reject"},
			diags: []string{
				`error: Service ns/web: spec.ports[1].protocol: must be TCP, UDP or SCTP, got "ICMP"`,
				`error: Service ns/web: spec.ports[2].port: must be 1-65535, got 65536`,
				`error: Service ns/web: spec.ports[3].nodePort: must be 1-65535, got -1`,
				`error: Service ns/web: spec.ports[4].port: is that of spec.ports[0] too, for the same protocol: the port is ignored`}},
		{name: "SNAP-22 externalIPs of the family, others are named",
			objects: []object{newService("web", externalIPs("198.18.0.1", "2001:db8::1", "no", "198.18.0.1")), webSlice},
			want:    []string{web80, "ExternalIP 198.18.0.1:80/tcp any→10.1.0.1+snat"},
			diags: []string{
				`warning: Service ns/web: spec.externalIPs[1]: 2001:db8::1 is not served: the Service has no clusterIP in IPv6`,
				`error: Service ns/web: spec.externalIPs[2]: must be an IP address, got "no"`,
				`info: Service ns/web: spec.externalIPs[3]: 198.18.0.1 is in spec.externalIPs[0] already, which is used`}},
		{name: "SNAP-23 ingress addresses, unless the load balancer is a proxy, whatever the type",
			objects: []object{newService("web", func(s *snapshot.Service) {
				s.LoadBalancer = []snapshot.Ingress{{IP: "203.0.113.1"}, {IP: "203.0.113.2", IPMode: "VIP"}, {IP: "203.0.113.3", IPMode: "Proxy"}, {}}
			}), webSlice},
			want: []string{web80, "LoadBalancer 203.0.113.1:80/tcp any→10.1.0.1+snat", "LoadBalancer 203.0.113.2:80/tcp any→10.1.0.1+snat"}},
		{name: "PKT-10 ranges hold for an external IP that is the load balancer's address too",
			objects: []object{newService("web", externalIPs("203.0.113.1", "198.18.0.1"), loadBalancer("203.0.113.1"), ranges("198.51.100.0/24")), webSlice},
			want:    []string{web80, "ExternalIP 198.18.0.1:80/tcp any→10.1.0.1+snat", "LoadBalancer 203.0.113.1:80/tcp any→10.1.0.1+snat"},
			diags: []string{`warning: Service ns/web: status.loadBalancer.ingress[0].ip: 203.0.113.1 is in spec.externalIPs[0] too: ` +
				`spec.loadBalancerSourceRanges applies to both`}},
		{name: "SNAP-24 without ranges in the family there is no need to warn",
			objects: []object{newService("web", externalIPs("203.0.113.1"), loadBalancer("203.0.113.1"), ranges("2001:db8::/32")), webSlice},
			want:    []string{web80, "LoadBalancer 203.0.113.1:80/tcp any→10.1.0.1+snat"},
			diags:   []string{`info: Service ns/web: spec.externalIPs[0]: 203.0.113.1 is in status.loadBalancer.ingress[0].ip too, which is used`}},
		{name: "SNAP-25 nodePort",
			objects: []object{newService("web", nodePort(30080)), webSlice},
			want:    []string{web80, "NodePort node:30080/tcp any→10.1.0.1+snat"}},
		{name: "SNAP-25 a load balancer without node ports",
			objects: []object{newService("web", loadBalancer("203.0.113.1")), webSlice},
			want:    []string{web80, "LoadBalancer 203.0.113.1:80/tcp any→10.1.0.1+snat"}},
		{name: "SNAP-27 externalTrafficPolicy counts for a ClusterIP Service with externalIPs",
			objects: []object{newService("web", externalIPs("198.18.0.1"), externalLocal), webSlice},
			want:    []string{web80, "ExternalIP 198.18.0.1:80/tcp pods→10.1.0.1 node→10.1.0.1+snat any→10.1.0.1"}},
		{name: "SNAP-27 and not for one without",
			objects: []object{newService("web", externalLocal, func(s *snapshot.Service) { s.Ports[0].NodePort = 30080 }), webSlice},
			want:    []string{web80, "NodePort node:30080/tcp any→10.1.0.1+snat"}},
		{name: "PKT-18 an address in two fields of a Service is the stronger kind's",
			objects: []object{newService("web", externalIPs("203.0.113.1"), loadBalancer("203.0.113.1")), webSlice},
			want:    []string{web80, "LoadBalancer 203.0.113.1:80/tcp any→10.1.0.1+snat"},
			diags:   []string{`info: Service ns/web: spec.externalIPs[0]: 203.0.113.1 is in status.loadBalancer.ingress[0].ip too, which is used`}},
	})
}

func TestExternalIPsGate(t *testing.T) { // feature gate AllowServiceExternalIPs (SNAP-22)
	cfg := newConfig(ir.ModeNFTables)
	cfg.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false}
	programs, diags := compileFor(t, cfg, newService("web", externalIPs("198.18.0.1")), webSlice)
	if d := cmp.Diff([]string{web80}, lines(programs)); d != "" {
		t.Errorf("frontends (-want +got):\n%s", d)
	}
	want := []string{"warning: Service ns/web: spec.externalIPs: is ignored: feature gate AllowServiceExternalIPs is off"}
	if d := cmp.Diff(want, texts(diags)); d != "" {
		t.Errorf("diagnostics (-want +got):\n%s", d)
	}
}

func TestSourceRanges(t *testing.T) { // ranges by family (SNAP-24), clients outside them (PKT-10), the node within one (PKT-11)
	dual := clusterIP("10.96.0.10", "fd00:10:96::10")
	for _, c := range []struct {
		name         string
		mode         ir.Mode
		ranges       []string
		want4, want6 []string
		diags        []string
	}{
		{name: "none"},
		{name: "by family, the other one stays open, blanks do not matter",
			ranges: []string{" 198.51.100.0/24 ", "10.9.0.0/16"}, want4: []string{"10.9.0.0/16", "198.51.100.0/24"}},
		{name: "twice, and with host bits", ranges: []string{"10.9.1.1/16", "10.9.0.0/16"}, want4: []string{"10.9.0.0/16"}},
		{name: "bad ones are left out", ranges: []string{"10.9.0.0", "10.9.0.0/16"}, want4: []string{"10.9.0.0/16"},
			diags: []string{`error: Service ns/web: spec.loadBalancerSourceRanges[0]: must be a CIDR, got "10.9.0.0"`}},
		{name: "only bad ones close it", ranges: []string{"x"}, want4: []string{"0.0.0.0/32"}, want6: []string{"::/128"},
			diags: []string{
				"warning: Service ns/web: spec.loadBalancerSourceRanges: no IPv4 range is valid: the load balancer's IPv4 addresses admit no client, while kube-proxy admits all",
				"warning: Service ns/web: spec.loadBalancerSourceRanges: no IPv6 range is valid: the load balancer's IPv6 addresses admit no client, while kube-proxy admits all",
				`error: Service ns/web: spec.loadBalancerSourceRanges[0]: must be a CIDR, got "x"`}},
		{name: "with the node inside, the VIPs are admitted", ranges: []string{"192.0.2.0/24", "2001:db8:1::/48"},
			want4: []string{"192.0.2.0/24", "203.0.113.1/32", "203.0.113.2/32"}, want6: []string{"2001:db8:1::/48"}},
		{name: "modes that do not filter say so", mode: ir.ModeKernelspace, ranges: []string{"192.0.2.0/24"},
			diags: []string{"warning: Service ns/web: spec.loadBalancerSourceRanges: mode kernelspace does not filter sources: all clients are admitted"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mode == "" {
				c.mode = ir.ModeIPTables
			}
			programs, diags := compileFor(t, newConfig(c.mode), newService("web", dual, nodePort(30080), externalIPs("198.18.0.1"),
				loadBalancer("203.0.113.1", "203.0.113.2", "2001:db8:203::1"), ranges(c.ranges...)), webSlice)
			for family, want := range (ir.PerFamily[[]string]{IPv4: c.want4, IPv6: c.want6}).All() {
				for _, f := range only(t, programs.Of(family)).Frontends {
					var got []string
					for _, r := range f.SourceRanges {
						got = append(got, r.Prefix.String())
					}
					if f.Kind != ir.LoadBalancer {
						want := []string(nil)
						if d := cmp.Diff(want, got); d != "" {
							t.Errorf("%s (-want +got):\n%s", f.Match, d)
						}
						continue
					}
					if d := cmp.Diff(want, got); d != "" {
						t.Errorf("%s (-want +got):\n%s", f.Match, d)
					}
				}
			}
			if d := cmp.Diff(c.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

func TestSessionAffinity(t *testing.T) { // session affinity (SNAP-26)
	for _, c := range []struct {
		name   string
		change change
		want   *ir.Affinity
		diags  []string
	}{
		{"none", func(*snapshot.Service) {}, nil, nil},
		{"as configured", affinity(60), &ir.Affinity{Timeout: time.Minute,
			Origin: ir.Origin{Object: "Service ns/web", Field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds"}}, nil},
		{"default", affinity(0), &ir.Affinity{Timeout: 3 * time.Hour,
			Origin: ir.Origin{Object: "Service ns/web", Field: "spec.sessionAffinity", Reason: "default timeout"}}, nil},
		{"out of bounds", affinity(86401), &ir.Affinity{Timeout: 3 * time.Hour,
			Origin: ir.Origin{Object: "Service ns/web", Field: "spec.sessionAffinity", Reason: "default timeout"}},
			[]string{"error: Service ns/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: must be 1-86400 seconds, got 86401: 10800 counts"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs, diags := compileFor(t, newConfig(ir.ModeNFTables), newService("web", nodePort(30080), externalLocal, c.change), webSlice)
			for _, p := range only(t, programs.IPv4).Pools {
				if d := cmp.Diff(c.want, p.Affinity); d != "" {
					t.Errorf("pool %s (-want +got):\n%s", p.Policy, d)
				}
			}
			if d := cmp.Diff(c.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

func TestHealthCheckNodePort(t *testing.T) { // healthCheckNodePort (SNAP-28)
	two := ports(snapshot.ServicePort{Name: "", Port: 80}, snapshot.ServicePort{Name: "b", Port: 81})
	both := func(e *snapshot.EndpointSlice) {
		e.Ports = append(e.Ports, snapshot.EndpointPort{Name: "b", Port: 8081, HasName: true, HasPort: true})
	}
	for _, c := range []struct {
		name      string
		mode      ir.Mode
		service   object
		endpoints []string
		want      *ir.HealthCheck
		diags     []string
	}{
		{name: "counts distinct addresses that are ready here, over all ports",
			service:   newService("web", two, loadBalancer(), externalLocal),
			endpoints: []string{"10.1.0.1", "10.1.0.2", "10.1.0.3 terminating", "10.1.0.4 not-ready", "10.2.0.1"},
			want:      &ir.HealthCheck{Port: 32000, Local: 2}},
		{name: "none here", service: newService("web", loadBalancer(), externalLocal), endpoints: []string{"10.2.0.1"},
			want: &ir.HealthCheck{Port: 32000}},
		{name: "only load balancers", service: newService("web", nodePort(30080), externalLocal), endpoints: []string{"10.1.0.1"}},
		{name: "only externalTrafficPolicy Local",
			service: newService("web", loadBalancer(), func(s *snapshot.Service) { s.HealthPort = 32000 }), endpoints: []string{"10.1.0.1"}},
		{name: "a port is needed",
			service: newService("web", loadBalancer(), func(s *snapshot.Service) { s.ExternalLocal = true }), endpoints: []string{"10.1.0.1"},
			diags: []string{"error: Service ns/web: spec.healthCheckNodePort: must be 1-65535 with externalTrafficPolicy Local, got 0"}},
		{name: "userspace mode has none", mode: ir.ModeUserspace,
			service: newService("web", loadBalancer(), externalLocal), endpoints: []string{"10.1.0.1"},
			diags: []string{
				"warning: Service ns/web: spec.externalTrafficPolicy: mode userspace does not support traffic policies: Local is treated as Cluster",
				"warning: Service ns/web: spec.healthCheckNodePort: mode userspace does not serve health check ports"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mode == "" {
				c.mode = ir.ModeIPTables
			}
			programs, diags := compileFor(t, newConfig(c.mode), c.service, editSlice("web-1", both, c.endpoints...))
			got := only(t, programs.IPv4).Health
			if d := cmp.Diff(c.want, got, cmpopts.IgnoreFields(ir.HealthCheck{}, "Origin")); d != "" {
				t.Errorf("health check (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.diags, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

// Addresses that the API server rejects are ignored. So are addresses that would
// intercept the node's own packets or break the tools, even if the API server
// accepts them.
func TestAddressesOfNoService(t *testing.T) { // ClusterIPs (SNAP-20), external IPs (SNAP-22), load balancers (SNAP-23), endpoints (SNAP-42)
	const bad = "must be an address that a Service can have, got "
	run(t, []row{
		{name: "external IPs as ValidateEndpointIP has it",
			objects: []object{newService("web", externalIPs("0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.5", "239.1.1.1", "198.18.0.1")), webSlice},
			want:    []string{web80, "ExternalIP 198.18.0.1:80/tcp any→10.1.0.1+snat", "ExternalIP 239.1.1.1:80/tcp any→10.1.0.1+snat"},
			diags: []string{
				"error: Service ns/web: spec.externalIPs[0]: " + bad + "0.0.0.0, which is unspecified",
				"error: Service ns/web: spec.externalIPs[1]: " + bad + "127.0.0.1, which is a loopback address",
				"error: Service ns/web: spec.externalIPs[2]: " + bad + "169.254.1.1, which is a link-local address",
				"error: Service ns/web: spec.externalIPs[3]: " + bad + "224.0.0.5, which is a link-local multicast address"}},
		{name: "IPv6 ones",
			objects: []object{newService("web", clusterIP("fd00:10:96::1"), externalIPs("::", "::1", "fe80::1", "ff02::5", "2001:db8::1"))},
			want:    []string{"ClusterIP [fd00:10:96::1]:80/tcp reject", "ExternalIP [2001:db8::1]:80/tcp reject"},
			diags: []string{
				"error: Service ns/web: spec.externalIPs[0]: " + bad + "::, which is unspecified",
				"error: Service ns/web: spec.externalIPs[1]: " + bad + "::1, which is a loopback address",
				"error: Service ns/web: spec.externalIPs[2]: " + bad + "fe80::1, which is a link-local address",
				"error: Service ns/web: spec.externalIPs[3]: " + bad + "ff02::5, which is a link-local multicast address"}},
		{name: "addresses of load balancers, of which link-local ones are in use",
			objects: []object{newService("web", loadBalancer("0.0.0.0", "127.0.0.1", "169.254.1.1", "239.1.1.1")), webSlice},
			want:    []string{web80, "LoadBalancer 169.254.1.1:80/tcp any→10.1.0.1+snat"},
			diags: []string{
				"error: Service ns/web: status.loadBalancer.ingress[0].ip: " + bad + "0.0.0.0, which is unspecified",
				"error: Service ns/web: status.loadBalancer.ingress[1].ip: " + bad + "127.0.0.1, which is a loopback address",
				"error: Service ns/web: status.loadBalancer.ingress[3].ip: " + bad + "239.1.1.1, which is a multicast address"}},
		{name: "ClusterIPs",
			objects: []object{
				newService("a", clusterIP("127.0.0.1"), nodePort(30080)), newService("b", clusterIP("0.0.0.0")),
				newService("c", clusterIP("169.254.0.1")), newService("d", clusterIP("239.0.0.1"))},
			diags: []string{
				"error: Service ns/a: spec.clusterIPs[0]: " + bad + "127.0.0.1, which is a loopback address",
				"error: Service ns/b: spec.clusterIPs[0]: " + bad + "0.0.0.0, which is unspecified",
				"error: Service ns/c: spec.clusterIPs[0]: " + bad + "169.254.0.1, which is a link-local address",
				"error: Service ns/d: spec.clusterIPs[0]: " + bad + "239.0.0.1, which is a multicast address"}},
		{name: "endpoints",
			objects: []object{newService("web"), slice("web-1", "10.1.0.1", "0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.5")},
			want:    []string{web80},
			diags: []string{
				"error: EndpointSlice ns/web-1: endpoints[1].addresses[0]: must be an address that an endpoint can have, got 0.0.0.0, which is unspecified",
				"error: EndpointSlice ns/web-1: endpoints[2].addresses[0]: must be an address that an endpoint can have, got 127.0.0.1, which is a loopback address",
				"error: EndpointSlice ns/web-1: endpoints[3].addresses[0]: must be an address that an endpoint can have, got 169.254.1.1, which is a link-local address",
				"error: EndpointSlice ns/web-1: endpoints[4].addresses[0]: must be an address that an endpoint can have, got 224.0.0.5, which is a link-local multicast address"}},
	})
}

func TestConflicts(t *testing.T) { // several Services with one address (SNAP-32)
	same := externalIPs("198.18.0.1")
	run(t, []row{
		{name: "the older Service gets the address",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), same, on(2)), slice("a-1", "10.1.0.1"),
				newService("b", clusterIP("10.96.0.2"), same, on(1), nodePort(30080)), slice("b-1", "10.1.0.2")},
			want: []string{
				"ClusterIP 10.96.0.1:80/tcp pods→10.1.0.1 any→10.1.0.1+snat",
				"ClusterIP 10.96.0.2:80/tcp pods→10.1.0.2 any→10.1.0.2+snat",
				"ExternalIP 198.18.0.1:80/tcp any→10.1.0.2+snat",
				"NodePort node:30080/tcp any→10.1.0.2+snat"},
			diags: []string{"error: Service ns/a: spec.externalIPs[0]: 198.18.0.1:80/tcp belongs to Service ns/b, which is older: it is ignored here"}},
		{name: "of one age, the first by name",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), nodePort(30080), on(1)),
				newService("b", clusterIP("10.96.0.2"), nodePort(30080), on(1))},
			want: []string{"ClusterIP 10.96.0.1:80/tcp reject", "NodePort node:30080/tcp reject", "ClusterIP 10.96.0.2:80/tcp reject"},
			diags: []string{
				"error: Service ns/b: spec.ports[0].nodePort: node:30080/tcp belongs to Service ns/a, which comes first by name: it is ignored here"}},
		{name: "without a creationTimestamp, the younger",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), nodePort(30080)),
				newService("b", clusterIP("10.96.0.2"), nodePort(30080), on(1))},
			want: []string{"ClusterIP 10.96.0.1:80/tcp reject", "ClusterIP 10.96.0.2:80/tcp reject", "NodePort node:30080/tcp reject"},
			diags: []string{
				"error: Service ns/a: spec.ports[0].nodePort: node:30080/tcp belongs to Service ns/b, which is older: it is ignored here"}},
		{name: "a ClusterIP goes before the address of a load balancer, and that before an external IP, whatever their age and names",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), externalIPs("10.96.0.9", "203.0.113.1"), on(1)),
				newService("b", clusterIP("10.96.0.2"), loadBalancer("10.96.0.9", "203.0.113.1"), on(2)),
				newService("c", clusterIP("10.96.0.9"))},
			want: []string{"ClusterIP 10.96.0.1:80/tcp reject", "ClusterIP 10.96.0.2:80/tcp reject", "LoadBalancer 203.0.113.1:80/tcp reject",
				"ClusterIP 10.96.0.9:80/tcp reject"},
			diags: []string{
				"error: Service ns/a: spec.externalIPs[0]: 10.96.0.9:80/tcp belongs to Service ns/c, whose ClusterIP it is: it is ignored here",
				"error: Service ns/a: spec.externalIPs[1]: 203.0.113.1:80/tcp belongs to Service ns/b, whose LoadBalancer it is: it is ignored here",
				"error: Service ns/b: status.loadBalancer.ingress[0].ip: 10.96.0.9:80/tcp belongs to Service ns/c, whose ClusterIP it is: it is ignored here"}},
		{name: "an address that a Service names twice is claimed as the stronger of its kinds",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), externalIPs("203.0.113.1"), on(1)),
				newService("b", clusterIP("10.96.0.2"), externalIPs("203.0.113.1"), loadBalancer("203.0.113.1"))},
			want: []string{"ClusterIP 10.96.0.1:80/tcp reject", "ClusterIP 10.96.0.2:80/tcp reject", "LoadBalancer 203.0.113.1:80/tcp reject"},
			diags: []string{
				"error: Service ns/a: spec.externalIPs[0]: 203.0.113.1:80/tcp belongs to Service ns/b, whose LoadBalancer it is: it is ignored here",
				"info: Service ns/b: spec.externalIPs[0]: 203.0.113.1 is in status.loadBalancer.ingress[0].ip too, which is used"}},
		{name: "PKT-18 an external IP of the node takes a node port, and both are named",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), externalIPs("192.0.2.11", "192.0.2.12"), ports(snapshot.ServicePort{Port: 30080})),
				newService("b", clusterIP("10.96.0.2"), nodePort(30080), on(1))},
			want: []string{"ClusterIP 10.96.0.1:30080/tcp reject", "ExternalIP 192.0.2.11:30080/tcp reject", "ExternalIP 192.0.2.12:30080/tcp reject",
				"ClusterIP 10.96.0.2:80/tcp reject", "NodePort node:30080/tcp reject"},
			diags: []string{"warning: Service ns/b: spec.ports[0].nodePort: 30080/tcp at the node's address 192.0.2.11 is Service ns/a's ExternalIP, " +
				"which receives the packets to the node port there while it has endpoints"}},
		{name: "other ports do not matter",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), same),
				newService("b", clusterIP("10.96.0.2"), same, ports(snapshot.ServicePort{Port: 81}))},
			want: []string{"ClusterIP 10.96.0.1:80/tcp reject", "ExternalIP 198.18.0.1:80/tcp reject",
				"ClusterIP 10.96.0.2:81/tcp reject", "ExternalIP 198.18.0.1:81/tcp reject"}},
		{name: "routes lead to the pools that stay",
			objects: []object{
				newService("a", on(1)),
				editSlice("b-1", func(e *snapshot.EndpointSlice) {
					e.Ports = append(e.Ports, snapshot.EndpointPort{Name: "x", Port: 8081, HasName: true, HasPort: true})
				}, "10.1.0.1"), newService("b", on(2), ports(snapshot.ServicePort{Port: 80}, snapshot.ServicePort{Name: "x", Port: 81}))},
			want:  []string{"ClusterIP 10.96.0.10:80/tcp reject", "ClusterIP 10.96.0.10:81/tcp pods→10.1.0.1:8081 any→10.1.0.1:8081+snat"},
			diags: []string{"error: Service ns/b: spec.clusterIPs[0]: 10.96.0.10:80/tcp belongs to Service ns/a, which is older: it is ignored here"}},
		{name: "a pool that only the lost frontend used goes with it",
			objects: []object{
				newService("a", clusterIP("10.96.0.1"), nodePort(30080)),
				newService("b", clusterIP("10.96.0.2"), nodePort(30080), externalLocal), slice("b-1", "10.1.0.1", "10.2.0.1")},
			want: []string{"ClusterIP 10.96.0.1:80/tcp reject", "NodePort node:30080/tcp reject",
				"ClusterIP 10.96.0.2:80/tcp pods→10.1.0.1,10.2.0.1 any→10.1.0.1,10.2.0.1+snat"},
			diags: []string{
				"error: Service ns/b: spec.ports[0].nodePort: node:30080/tcp belongs to Service ns/a, which comes first by name: it is ignored here"}},
	})
}

func TestEndpointsOrigins(t *testing.T) { // v1 Endpoints objects (SNAP-62)
	legacy := func(s *snapshot.Snapshot) {
		s.SetEndpoints(ns("web"), snapshot.FromEndpoints(&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
			Subsets: []corev1.EndpointSubset{{}, {
				Addresses: []corev1.EndpointAddress{{IP: "fd00:10:1::1"}, {IP: "ten"}, {IP: "10.1.0.1"}, {IP: "010.001.000.002"}},
				Ports:     []corev1.EndpointPort{{Port: 8080}, {Port: 70000}},
			}},
		}))
	}
	programs, diags := compileFor(t, newConfig(ir.ModeNFTables), newService("web"), legacy)
	var fields []string
	for _, b := range only(t, programs.IPv4).Pools[0].Backends {
		fields = append(fields, b.AddrPort.String()+" "+b.Origin.Object+" "+b.Origin.Field)
	}
	want := []string{"10.1.0.1:8080 Endpoints ns/web subsets[1].addresses[2]", "10.1.0.2:8080 Endpoints ns/web subsets[1].addresses[3]"}
	if d := cmp.Diff(want, fields); d != "" {
		t.Errorf("origins (-want +got):\n%s", d)
	}
	wantDiags := []string{
		`error: Endpoints ns/web: subsets[1].addresses[1].ip: must be an IP address, got "ten"`,
		`error: Endpoints ns/web: subsets[1].ports[1].port: must be 1-65535, got 70000`,
	}
	if d := cmp.Diff(wantDiags, texts(diags)); d != "" {
		t.Errorf("diagnostics (-want +got):\n%s", d)
	}
}

package hns

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/rendertest"
)

// program is irtest's Program with the routes of mode kernelspace: one pool for
// all sources, no masquerade.
func program() *ir.Program {
	p := irtest.Program(ir.ModeKernelspace)
	p.Node.HNS = &ir.HNS{NetworkName: "l2", NetworkType: "L2Bridge", HealthzPort: 10256}
	for i := range p.Services {
		s := &p.Services[i]
		s.HNS = &ir.HNSService{}
		for j := range s.Frontends {
			f := &s.Frontends[j]
			f.SourceRanges = nil
			pool := slices.IndexFunc(s.Pools, func(p ir.Pool) bool { return p.Policy == f.Policy })
			f.Routes = nil
			if pool >= 0 {
				f.Routes = []ir.Route{{From: ir.Any, Pool: pool, Origin: s.Origin}}
			}
			if f.Kind.External() && f.Policy == ir.Local {
				s.HNS.ExternalLocal = true
			}
		}
	}
	return p
}

func overlay(p *ir.Program) {
	p.Node.HNS.NetworkType = Overlay
	p.Node.HNS.SourceVIP = netip.MustParseAddr("10.244.1.2")
}

func only(p *ir.Program, names ...string) *ir.Program {
	p.Services = slices.DeleteFunc(p.Services, func(s ir.Service) bool { return !slices.Contains(names, s.Name.Name) })
	return p
}

func written(t *testing.T, programs ...*ir.Program) string {
	t.Helper()
	outputs := LowerAll(ir.NewPrograms(programs...)).Outputs()
	if len(outputs) != 1 || outputs[0].Format != "hns" || outputs[0].File != "hns.json" {
		t.Fatalf("outputs: %v", outputs)
	}
	var b bytes.Buffer
	if err := outputs[0].Write(&b); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(b.Bytes()) {
		t.Fatalf("no JSON:\n%s", b.String())
	}
	return b.String()
}

func TestDocument(t *testing.T) {
	p := only(program(), "sticky")
	overlay(p)
	want := `{
  "network": "l2",
  "networkType": "Overlay",
  "endpoints": [
    {"ref":"10.96.0.15","role":"clusterIP","endpoint":{"Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.11"}}],"IpConfigurations":[{"IpAddress":"10.96.0.15"}],"Flags":1,"SchemaVersion":{"Major":2,"Minor":0}}},
    {"ref":"10.244.1.2","role":"sourceVIP","endpoint":{"IpConfigurations":[{"IpAddress":"10.244.1.2"}],"SchemaVersion":{"Major":2,"Minor":0}}},
    {"ref":"10.244.1.10","role":"local","endpoint":{"IpConfigurations":[{"IpAddress":"10.244.1.10"}],"SchemaVersion":{"Major":2,"Minor":0}}},
    {"ref":"10.244.2.10","role":"remote","endpoint":{"Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.11"}}],"IpConfigurations":[{"IpAddress":"10.244.2.10"}],"MacAddress":"02-11-0a-f4-02-0a","Flags":1,"SchemaVersion":{"Major":2,"Minor":0}}}
  ],
  "loadBalancers": [
    {"kind":"ClusterIP","servicePort":"default/sticky","identity":"17/8080/53/10.96.0.15/` + EndpointsHash([]string{"10.244.1.10", "10.244.2.10"}) + `","loadBalancer":{"HostComputeEndpoints":["10.244.1.10","10.244.2.10"],"SourceVIP":"10.244.1.2","FrontendVIPs":["10.96.0.15"],"PortMappings":[{"Protocol":17,"InternalPort":8080,"ExternalPort":53,"DistributionType":2}],"SchemaVersion":{"Major":2,"Minor":0}}}
  ]
}
`
	if diff := cmp.Diff(want, written(t, p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := written(t, only(program())); !strings.Contains(got, `"endpoints": [],`) || !strings.Contains(got, `"loadBalancers": []`) {
		t.Errorf("without Services:\n%s", got)
	}
}

// row describes a load balancer on one line.
func row(l *LoadBalancer) string {
	m := l.HCN.PortMappings[0]
	return fmt.Sprintf("%s %v %d:%d>%d port=%d lb=%d %s", l.Kind, l.HCN.FrontendVIPs, m.Protocol, m.ExternalPort, m.InternalPort,
		m.Flags, l.HCN.Flags, strings.Join(l.Endpoints(), " "))
}

// The table of load balancers, with flags by kind and policy (WIN-12).
func TestLoadBalancers(t *testing.T) {
	preserve := func(p *ir.Program) {
		p.Services[0].HNS.PreserveDIP = true
	}
	health := func(p *ir.Program) {
		p.Node.HNS.ForwardHealthCheckVIP, p.Node.HNS.RootEndpoint = true, "cbr0"
	}
	tests := []struct {
		name, service string
		change        func(*ir.Program)
		want          []string
	}{
		{"policy Cluster", "web", func(*ir.Program) {}, []string{
			"ClusterIP [10.96.0.10] 6:80>8080 port=0 lb=0 10.244.1.10 10.244.2.10",
			"NodePort [] 6:30080>8080 port=18 lb=0 10.244.1.10 10.244.2.10",
			"ExternalIP [198.18.0.10] 6:80>8080 port=16 lb=0 10.244.1.10 10.244.2.10",
			"LoadBalancer [203.0.113.10] 6:80>8080 port=16 lb=0 10.244.1.10 10.244.2.10",
		}},
		{"DSR is for ClusterIPs", "web", func(p *ir.Program) { p.Node.HNS.EnableDSR = true }, []string{
			"ClusterIP [10.96.0.10] 6:80>8080 port=0 lb=1 10.244.1.10 10.244.2.10",
			"NodePort [] 6:30080>8080 port=18 lb=0 10.244.1.10 10.244.2.10",
			"ExternalIP [198.18.0.10] 6:80>8080 port=16 lb=0 10.244.1.10 10.244.2.10",
			"LoadBalancer [203.0.113.10] 6:80>8080 port=16 lb=0 10.244.1.10 10.244.2.10",
		}},
		{"externalTrafficPolicy Local", "local", func(*ir.Program) {}, []string{
			"ClusterIP [10.96.0.11] 6:80>8080 port=0 lb=0 10.244.1.10 10.244.2.10",
			"NodePort [] 6:30081>8080 port=18 lb=1 10.244.1.10",
			"LoadBalancer [203.0.113.11] 6:80>8080 port=16 lb=1 10.244.1.10",
		}},
		{"preserve-destination", "web", preserve, []string{
			"ClusterIP [10.96.0.10] 6:80>8080 port=0 lb=0 10.244.1.10 10.244.2.10",
			"NodePort [] 6:30080>8080 port=18 lb=0 10.244.1.10 10.244.2.10",
			"ExternalIP [198.18.0.10] 6:80>8080 port=16 lb=0 10.244.1.10 10.244.2.10",
			"LoadBalancer [203.0.113.10] 6:80>8080 port=28 lb=1 10.244.1.10 10.244.2.10",
		}},
		{"health checks by kube-proxy's port", "ranges", func(p *ir.Program) { health(p); preserve(p) }, []string{
			"LoadBalancer [203.0.113.14] 6:80>8080 port=28 lb=1 10.244.1.10",
			"HealthCheck [203.0.113.14] 6:10256>10256 port=12 lb=0 cbr0",
		}},
		{"health checks by the Service's port", "ranges", func(p *ir.Program) {
			health(p)
			p.Services[0].Health = &ir.HealthCheck{Port: 32000}
			second := p.Services[0].Frontends[0]
			second.Match.Port = 443
			p.Services[0].Frontends = append(p.Services[0].Frontends, second)
		}, []string{
			"LoadBalancer [203.0.113.14] 6:80>8080 port=16 lb=0 10.244.1.10",
			"LoadBalancer [203.0.113.14] 6:443>8080 port=16 lb=0 10.244.1.10",
			"HealthCheck [203.0.113.14] 6:32000>32000 port=0 lb=0 cbr0",
		}},
		{"no root endpoint", "ranges", func(p *ir.Program) { health(p); p.Node.HNS.RootEndpoint = "" }, []string{
			"LoadBalancer [203.0.113.14] 6:80>8080 port=16 lb=0 10.244.1.10",
		}},
		{"WIN-23 no endpoints", "none", func(*ir.Program) {}, nil},
		{"IPv6", "ranges", func(p *ir.Program) {
			p.Family = ir.IPv6
			p.Services[0].Frontends[0].Match.Addr = netip.MustParseAddr("2001:db8::14")
			p.Services[0].Pools[0].Backends[0].AddrPort = netip.MustParseAddrPort("[fd00::1:10]:8080")
		}, []string{"LoadBalancer [2001:db8::14] 6:80>8080 port=16 lb=2 fd00::1:10"}},
		{"nothing known of HNS", "ranges", func(p *ir.Program) { p.Node.HNS, p.Services[0].HNS = nil, nil },
			[]string{"LoadBalancer [203.0.113.14] 6:80>8080 port=16 lb=0 10.244.1.10"}},
	}
	for _, tt := range tests {
		p := only(program(), tt.service)
		tt.change(p)
		r := Lower(p)
		var got []string
		for i := range r.LoadBalancers {
			got = append(got, row(&r.LoadBalancers[i]))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestMAC(t *testing.T) {
	for addr, want := range map[string]string{
		"10.244.2.10":     "02-11-0a-f4-02-0a",
		"fd00::a1b2:c3d4": "02-11-d4-c3-b2-a1", // bytes 15, 14, 13, 12
	} {
		if got := MAC(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

// A load balancer matches regardless of the case and order of the endpoint ids;
// all other fields must be equal (WIN-25).
func TestIdentity(t *testing.T) {
	r := Lower(only(program(), "web"))
	a, b := r.LoadBalancers[0], r.LoadBalancers[1]
	if a.Identity([]string{"ab", "CD"}) != a.Identity([]string{"cd", "AB"}) {
		t.Error("order and case count")
	}
	if got, want := a.Identity(nil), "6/8080/80/10.96.0.10/"+strings.Repeat("00", 20); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// SHA-1 of "AB", from sha1sum.
	if got, want := EndpointsHash([]string{"ab"}), "06d945942aa26a61be18c3e22bf19bbca8dd2b5d"; got != want {
		t.Errorf("hash of one: got %s, want %s", got, want)
	}
	if got := EndpointsHash([]string{"ab", "ab"}); got != EndpointsHash(nil) {
		t.Errorf("the same twice: got %s", got)
	}
	if a.Identity([]string{"x"}) == a.Identity([]string{"y"}) || a.Identity(nil) == b.Identity(nil) {
		t.Error("different load balancers have one identity")
	}
}

// A backend that is local for one Service gets no remote endpoint for another.
func TestEndpointsOnce(t *testing.T) {
	p := only(program(), "ranges", "web")
	p.Services[0].Pools[0].Backends[0].Local = false
	var got []string
	for _, e := range Lower(p).Endpoints {
		got = append(got, e.Ref+" "+string(e.Role))
	}
	if diff := cmp.Diff([]string{"10.244.1.10 local", "10.244.2.10 remote"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExplain(t *testing.T) {
	p := only(program(), "none", "web")
	overlay(p)
	x := LowerAll(ir.NewPrograms(p))
	var got []string
	x.Explain(func(e render.Entry) {
		got = append(got, fmt.Sprint(e.Where, " | ", e.Match, " | ", e.Port, " | ", e.Origin))
	})
	want := []string{
		"endpoint 10.96.0.10 |  | default/web | Service default/web",
		"endpoint 10.244.1.2 |  | / | config: winkernel.sourceVip",
		"endpoint 10.244.1.10 |  | default/web | EndpointSlice default/web-1: endpoints[0] (ready)",
		"endpoint 10.244.2.10 |  | default/web | EndpointSlice default/web-1: endpoints[1] (ready)",
		"load balancer ClusterIP 10.96.0.10:80/tcp | 10.96.0.10:80/tcp | default/web | Service default/web",
		"load balancer NodePort node:30080/tcp | node:30080/tcp | default/web | Service default/web",
		"load balancer ExternalIP 198.18.0.10:80/tcp | 198.18.0.10:80/tcp | default/web | Service default/web",
		"load balancer LoadBalancer 203.0.113.10:80/tcp | 203.0.113.10:80/tcp | default/web | Service default/web",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	rendertest.Explain(t, x, nil)
}

package compiler

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Routes by mode and detection of pods: ClusterIPs from pods and other clients
// (PKT-1, PKT-2), external addresses by policy and source (PKT-3 to PKT-6).
func TestRoutes(t *testing.T) {
	noDetector := func(c *config.Config) { c.ClusterCIDR = "" }
	masqueradeAll := func(c *config.Config) { c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = true, true }
	for _, c := range []struct {
		name     string
		modes    []ir.Mode
		edit     func(*config.Config)
		internal string
		external string // externalTrafficPolicy Cluster
		local    string // externalTrafficPolicy Local
	}{
		{"pods are reported from others", []ir.Mode{ir.ModeIPTables, ir.ModeNFTables}, func(*config.Config) {},
			"pods→10.1.0.1,10.2.0.1 any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1,10.2.0.1+snat",
			"pods→10.1.0.1,10.2.0.1 node→10.1.0.1,10.2.0.1+snat any→10.1.0.1"},
		{"pods are not reported from others", []ir.Mode{ir.ModeIPTables, ir.ModeNFTables}, noDetector,
			"any→10.1.0.1,10.2.0.1", "any→10.1.0.1,10.2.0.1+snat", "node→10.1.0.1,10.2.0.1+snat any→10.1.0.1"},
		{"masqueradeAll", []ir.Mode{ir.ModeIPTables, ir.ModeNFTables}, masqueradeAll,
			"any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1,10.2.0.1+snat",
			"pods→10.1.0.1,10.2.0.1 node→10.1.0.1,10.2.0.1+snat any→10.1.0.1"},
		{"ipvs", []ir.Mode{ir.ModeIPVS}, func(*config.Config) {},
			"pods→10.1.0.1,10.2.0.1 any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1"},
		{"ipvs with masqueradeAll", []ir.Mode{ir.ModeIPVS}, masqueradeAll,
			"any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1"},
		{"kernelspace", []ir.Mode{ir.ModeKernelspace}, masqueradeAll,
			"any→10.1.0.1,10.2.0.1", "any→10.1.0.1,10.2.0.1", "any→10.1.0.1"},
		{"userspace", []ir.Mode{ir.ModeUserspace}, func(*config.Config) {},
			"any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1,10.2.0.1+snat", "any→10.1.0.1,10.2.0.1+snat"},
	} {
		for _, mode := range c.modes {
			t.Run(c.name+" "+string(mode), func(t *testing.T) {
				cfg := newConfig(mode)
				c.edit(cfg)
				everywhere := []change{nodePort(30080), externalIPs("198.18.0.1"), loadBalancer("203.0.113.1")}
				endpoints := slice("web-1", "10.1.0.1", "10.2.0.1")
				for _, local := range []bool{false, true} {
					changes, external := everywhere, c.external
					if local {
						changes, external = append(changes, externalLocal), c.local
					}
					programs, _ := compileFor(t, cfg, newService("web", changes...), endpoints)
					want := []string{"ClusterIP 10.96.0.10:80/tcp " + c.internal, "ExternalIP 198.18.0.1:80/tcp " + external,
						"LoadBalancer 203.0.113.1:80/tcp " + external, "NodePort node:30080/tcp " + external}
					if d := cmp.Diff(want, lines(programs)); d != "" {
						t.Errorf("externalTrafficPolicy Local %v (-want +got):\n%s", local, d)
					}
				}
			})
		}
	}
}

// Policy Local is never the default, so its routes name the Service that sets it.
// Policy Cluster is the default, and its routes are shared by all Services.
func TestRoutesNameTheFieldThatDecides(t *testing.T) {
	decides := func(mode ir.Mode, changes ...change) (decides []string) {
		web := newService("web", append(changes, nodePort(30080))...)
		programs, _ := compileFor(t, newConfig(mode), web, slice("web-1", "10.1.0.1", "10.2.0.1"))
		for _, f := range only(t, programs.IPv4).Frontends {
			for _, r := range f.Routes {
				if f.Kind == ir.NodePort {
					decides = append(decides, r.From.String()+": "+r.Origin.Object+": "+r.Origin.Field)
				}
			}
		}
		return decides
	}
	const field = "Service ns/web: spec.externalTrafficPolicy"
	for _, c := range []struct {
		name string
		got  []string
		want []string
	}{
		{"Cluster", decides(ir.ModeNFTables), []string{"any: default: externalTrafficPolicy"}},
		{"Local", decides(ir.ModeNFTables, externalLocal), []string{"pods: config: clusterCIDR", "node: " + field, "any: " + field}},
		{"Local, ipvs", decides(ir.ModeIPVS, externalLocal), []string{"any: " + field}},
		{"Local, kernelspace", decides(ir.ModeKernelspace, externalLocal), []string{"any: config: mode"}},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// The routes of a second port use the pools of that port.
func TestPoolsOfSeveralPorts(t *testing.T) {
	web := newService("web", externalLocal, ports(
		snapshot.ServicePort{Name: "b", Port: 81, NodePort: 30081}, snapshot.ServicePort{Name: "a", Port: 80, NodePort: 30080}),
		func(s *snapshot.Service) { s.Type = "NodePort" })
	endpoints := editSlice("web-1", func(e *snapshot.EndpointSlice) {
		e.Ports = []snapshot.EndpointPort{{Name: "b", Port: 8081, HasName: true, HasPort: true}, {Name: "a", Port: 8080, HasName: true, HasPort: true}}
	}, "10.1.0.1")
	run(t, []row{{name: "two", objects: []object{web, endpoints}, want: []string{
		"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1 any→10.1.0.1+snat",
		"ClusterIP 10.96.0.10:81/tcp pods→10.1.0.1:8081 any→10.1.0.1:8081+snat",
		"NodePort node:30080/tcp pods→10.1.0.1 node→10.1.0.1+snat any→10.1.0.1",
		"NodePort node:30081/tcp pods→10.1.0.1:8081 node→10.1.0.1:8081+snat any→10.1.0.1:8081",
	}}})
}

// Fields that a mode does not support are ignored, with a warning.
func TestCapabilities(t *testing.T) {
	sctp := newService("web", ports(snapshot.ServicePort{Port: 80}, snapshot.ServicePort{Name: "s", Protocol: "SCTP", Port: 90}))
	local := newService("web", nodePort(30080), internalLocal, externalLocal)
	run(t, []row{
		{name: "SNAP-64 userspace has no SCTP", mode: ir.ModeUserspace, objects: []object{sctp, webSlice},
			want:  []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1+snat"},
			diags: []string{"warning: Service ns/web: spec.ports[1].protocol: mode userspace does not support SCTP: the port is ignored"}},
		{name: "USR-7 userspace has no policies", mode: ir.ModeUserspace, objects: []object{local, slice("web-1", "10.2.0.1")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp any→10.2.0.1+snat", "NodePort node:30080/tcp any→10.2.0.1+snat"},
			diags: []string{
				"warning: Service ns/web: spec.externalTrafficPolicy: mode userspace does not support traffic policies: Local is treated as Cluster",
				"warning: Service ns/web: spec.internalTrafficPolicy: mode userspace does not support traffic policies: Local is treated as Cluster"}},
		{name: "SNAP-62 userspace knows ready endpoints only", mode: ir.ModeUserspace,
			objects: []object{newService("web"), slice("web-1", "10.1.0.1 terminating", "10.2.0.1 dead")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp reject"}},
		{name: "and no hints", mode: ir.ModeUserspace,
			objects: []object{newService("web"), slice("web-1", "10.1.0.1 zone=zone-a", "10.2.0.1 zone=zone-b")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1,10.2.0.1+snat"}},
	})
}

func TestWindows(t *testing.T) {
	lb := loadBalancer("203.0.113.1")
	all := func(c ...change) object {
		return newService("web", append([]change{nodePort(30080), externalIPs("198.18.0.1"), lb}, c...)...)
	}
	preserve := func(s *snapshot.Service) { s.PreserveDIP = true }
	to := func(cluster, external, ingress, node string) []string {
		return []string{"ClusterIP 10.96.0.10:80/tcp " + cluster, "ExternalIP 198.18.0.1:80/tcp " + external,
			"LoadBalancer 203.0.113.1:80/tcp " + ingress, "NodePort node:30080/tcp " + node}
	}
	sctp := newService("web", ports(snapshot.ServicePort{Name: "s", Protocol: "SCTP", Port: 90}))
	sctpSlice := editSlice("web-1", func(e *snapshot.EndpointSlice) { e.Ports[0].Name, e.Ports[0].Protocol = "s", "SCTP" }, "10.1.0.1")
	named := func(e *snapshot.EndpointSlice) { e.Ports[0].Port = 9090 }
	rows := []row{
		{name: "WIN-22 without a load balancer only what is ready, without hints",
			objects: []object{newService("web"), slice("web-1", "10.1.0.1 zone=zone-a", "10.2.0.1 zone=zone-b", "10.2.0.2 terminating")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1,10.2.0.1"}},
		{name: "WIN-22 without one nothing that is not ready, serving or not",
			objects: []object{newService("web", nodePort(30080), externalIPs("198.18.0.1")), slice("web-1", "10.1.0.1 not-ready", "10.2.0.1 unready-serving", "10.2.0.2 dead")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp reject", "ExternalIP 198.18.0.1:80/tcp reject", "NodePort node:30080/tcp reject"}},
		{name: "WIN-22 nor behind one, while an endpoint is ready",
			objects: []object{all(), slice("web-1", "10.1.0.1", "10.1.0.2 not-ready", "10.2.0.1 unready-serving", "10.2.0.2 terminating")},
			want:    to("any→10.1.0.1", "any→10.1.0.1", "any→10.1.0.1", "any→10.1.0.1")},
		{name: "WIN-22 no fallback to terminating without one",
			objects: []object{newService("web"), slice("web-1", "10.1.0.1 terminating")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp reject"}},
		{name: "WIN-22 all terminating behind one: what serves, for ClusterIP and ingress",
			objects: []object{all(), slice("web-1", "10.1.0.1 terminating", "10.2.0.1 dead")},
			want:    to("any→10.1.0.1", "reject", "any→10.1.0.1", "reject")},
		{name: "WIN-22 none serving behind one: all, for ClusterIP and ingress",
			objects: []object{all(), slice("web-1", "10.1.0.1 not-ready", "10.2.0.1 dead")},
			want:    to("any→10.1.0.1,10.2.0.1", "reject", "any→10.1.0.1,10.2.0.1", "reject")},
		{name: "WIN-22 with externalTrafficPolicy Local only what is here is asked",
			objects: []object{all(externalLocal), slice("web-1", "10.1.0.1 terminating", "10.2.0.1")},
			want:    to("any→10.1.0.1,10.2.0.1", "reject", "any→10.1.0.1", "reject")},
		{name: "internal Local", objects: []object{newService("web", internalLocal), slice("web-1", "10.1.0.1", "10.2.0.1")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1"}},
		{name: "preserve-destination: only what is here, but for externalIPs", objects: []object{all(preserve), slice("web-1", "10.1.0.1", "10.2.0.1")},
			want: to("any→10.1.0.1,10.2.0.1", "any→10.1.0.1,10.2.0.1", "any→10.1.0.1", "any→10.1.0.1")},
		{name: "SNAP-64 SCTP is a protocol like any other", objects: []object{sctp, sctpSlice},
			want: []string{"ClusterIP 10.96.0.10:90/sctp any→10.1.0.1"}},
		{name: "WIN-21 the last endpoint's port", objects: []object{newService("web"), webSlice, editSlice("web-2", named, "10.2.0.1", "10.1.0.1")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1:9090,10.2.0.1:9090"},
			diags: []string{
				"warning: Service ns/web: spec.ports[0].targetPort: endpoints have different ports: mode kernelspace uses 9090 of 10.2.0.1:9090 for all"}},
		{name: "WIN-21 of those that may be used", objects: []object{newService("web"), webSlice, editSlice("web-2", named, "10.2.0.1 not-ready")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1"}},
		{name: "WIN-24 an address whose ipMode is Proxy is the load balancer's own",
			objects: []object{newService("web", func(s *snapshot.Service) { s.LoadBalancer = []snapshot.Ingress{{IP: "203.0.113.1", IPMode: "Proxy"}} }), webSlice},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp any→10.1.0.1"}},
	}
	for i := range rows {
		rows[i].mode = ir.ModeKernelspace
	}
	run(t, rows)
	programs, _ := compileFor(t, newConfig(ir.ModeKernelspace), newService("web", preserve, func(s *snapshot.Service) { s.NoOptimize = true }), webSlice)
	if d := cmp.Diff(&ir.HNSService{PreserveDIP: true, NoOptimize: true}, only(t, programs.IPv4).HNS); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
}

// HNS decides which endpoints are local, whatever their nodeName. Other endpoints
// are local by nodeName (WIN-31).
func TestHNSEndpointsAreLocal(t *testing.T) {
	snap := snapshotOf(newService("web", internalLocal), slice("web-1", "10.1.0.1", "10.2.0.1", "10.2.0.2"))
	facts := Facts{NodeName: "node1", HNSEndpoints: map[netip.Addr]struct{}{netip.MustParseAddr("10.2.0.2"): {}}}
	for mode, want := range map[ir.Mode]string{
		ir.ModeKernelspace: "ClusterIP 10.96.0.10:80/tcp any→10.1.0.1,10.2.0.2",
		ir.ModeNFTables:    "ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1 any→10.1.0.1+snat",
	} {
		programs, _ := Compile(newConfig(mode), snap, facts)
		if d := cmp.Diff([]string{want}, lines(programs)); d != "" {
			t.Errorf("%s (-want +got):\n%s", mode, d)
		}
	}
}

// The endpoints that HNS reports change with each pod that starts. A new Compiler
// is required only if an endpoint becomes local or stops being local. Changed
// Services use the new set immediately.
func TestHostedEndpointsChange(t *testing.T) {
	set := func(addrs ...string) map[netip.Addr]struct{} {
		all := map[netip.Addr]struct{}{}
		for _, a := range addrs {
			all[netip.MustParseAddr(a)] = struct{}{}
		}
		return all
	}
	snap := snapshotOf(newService("web", internalLocal), slice("web-1", "10.1.0.1", "10.2.0.1"))
	c := New(newConfig(ir.ModeKernelspace), snap, Facts{NodeName: "node1", HNSEndpoints: set("10.1.0.1")})
	if c.SetHNSEndpoints(set("10.1.0.1", "10.1.0.9")) || c.SetHNSEndpoints(set()) {
		t.Error("a pod that nodeName knows is no news")
	}
	if !c.SetHNSEndpoints(set("10.2.0.1")) {
		t.Error("a pod that nodeName has elsewhere is")
	}
	if !c.SetHNSEndpoints(set()) {
		t.Error("and it is when it goes")
	}
	mapped := New(newConfig(ir.ModeKernelspace), snapshotOf(newService("web", internalLocal), slice("web-1", "::ffff:10.1.0.3")), Facts{NodeName: "node2"})
	if !mapped.SetHNSEndpoints(set("10.1.0.3")) {
		t.Error("and so is one whose address is written as IPv6")
	}
	if New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"}).SetHNSEndpoints(set("10.2.0.1")) {
		t.Error("only mode kernelspace asks HNS")
	}
	c.SetHNSEndpoints(set("10.2.0.1"))
	changes, _ := c.Update([]ir.Name{{Namespace: "ns", Name: "web"}})
	if n := len(changes.IPv4[0].New.Pools[0].Backends); n != 2 {
		t.Errorf("after a change %d endpoints are local, want 2", n)
	}
}

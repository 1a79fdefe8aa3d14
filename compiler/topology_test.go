package compiler

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

func TestEndpoints(t *testing.T) {
	entry := func(edit func(*snapshot.EndpointPort)) func(*snapshot.EndpointSlice) {
		return func(e *snapshot.EndpointSlice) { edit(&e.Ports[0]) }
	}
	web := newService("web")
	none := []string{"ClusterIP 10.96.0.10:80/tcp reject"}
	run(t, []row{
		{name: "SNAP-40 conditions", objects: []object{web, slice("web-1", "10.1.0.1", "10.1.0.2 not-ready", "10.1.0.3 terminating", "10.1.0.4 unready-serving")},
			want: []string{web80}},
		{name: "SNAP-41 a port without a name field is left out",
			objects: []object{web, editSlice("web-1", entry(func(p *snapshot.EndpointPort) { p.HasName = false }), "10.1.0.1")},
			want:    none, diags: []string{"error: EndpointSlice ns/web-1: ports[0].name: must be set, or empty for a port without a name: the port is ignored"}},
		{name: "SNAP-41 all ports at once are not served",
			objects: []object{web, editSlice("web-1", entry(func(p *snapshot.EndpointPort) { p.HasPort = false }), "10.1.0.1")},
			want:    none, diags: []string{"error: EndpointSlice ns/web-1: ports[0].port: must be set: a slice for all ports is not supported"}},
		{name: "SNAP-41 nor is port 0",
			objects: []object{web, editSlice("web-1", entry(func(p *snapshot.EndpointPort) { p.Port = 0 }), "10.1.0.1")},
			want:    none, diags: []string{"error: EndpointSlice ns/web-1: ports[0].port: must be set: a slice for all ports is not supported"}},
		{name: "SNAP-41 a port out of range",
			objects: []object{web, editSlice("web-1", entry(func(p *snapshot.EndpointPort) { p.Port = 70000 }), "10.1.0.1")},
			want:    none, diags: []string{"error: EndpointSlice ns/web-1: ports[0].port: must be 1-65535, got 70000"}},
		{name: "SNAP-41 an unknown protocol",
			objects: []object{web, editSlice("web-1", entry(func(p *snapshot.EndpointPort) { p.Protocol = "DCCP" }), "10.1.0.1")},
			want:    none, diags: []string{`error: EndpointSlice ns/web-1: ports[0].protocol: must be TCP, UDP or SCTP, got "DCCP"`}},
		{name: "SNAP-42 an endpoint without an address, or with a bad one",
			objects: []object{web, editSlice("web-1", func(e *snapshot.EndpointSlice) {
				e.Endpoints = append(e.Endpoints, snapshot.Endpoint{Ready: true, Serving: true}, snapshot.Endpoint{Address: "pod", Ready: true, Serving: true})
			}, "10.1.0.1")},
			want: []string{web80}, diags: []string{
				"error: EndpointSlice ns/web-1: endpoints[1].addresses: must not be empty: the endpoint is ignored",
				`error: EndpointSlice ns/web-1: endpoints[2].addresses[0]: must be an IP address, got "pod"`}},
		{name: "SNAP-42 addresses are written anew", objects: []object{web, slice("web-1", "010.001.0.1")}, want: []string{web80}},
		{name: "SNAP-45 one entry of several",
			objects: []object{web, slice("web-1", "10.1.0.1", "10.1.0.2"), slice("web-2", "10.1.0.2", "10.1.0.3")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1,10.1.0.2,10.1.0.3 any→10.1.0.1,10.1.0.2,10.1.0.3+snat"}},
		{name: "SNAP-45 what is not terminating counts, wherever it stands",
			objects: []object{web, slice("web-1", "10.1.0.1", "10.1.0.2 terminating"), slice("web-2", "10.1.0.2", "10.1.0.1 terminating")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1,10.1.0.2 any→10.1.0.1,10.1.0.2+snat"},
			diags: []string{
				"info: EndpointSlice ns/web-1: endpoints[1]: 10.1.0.2:8080 differs in EndpointSlice ns/web-2, endpoints[0], which is used",
				"info: EndpointSlice ns/web-2: endpoints[1]: 10.1.0.1:8080 differs in EndpointSlice ns/web-1, endpoints[0], which is used"}},
		{name: "SNAP-45 even where the terminating one serves and the other does not",
			objects: []object{web, slice("web-1", "10.1.0.1 terminating"), slice("web-2", "10.1.0.1 not-ready")},
			want:    none,
			diags:   []string{"info: EndpointSlice ns/web-1: endpoints[0]: 10.1.0.1:8080 differs in EndpointSlice ns/web-2, endpoints[0], which is used"}},
		{name: "SNAP-45 then what is ready",
			objects: []object{web, slice("web-1", "10.1.0.1 unready-serving"), slice("web-2", "10.1.0.1")},
			want:    []string{web80},
			diags:   []string{"info: EndpointSlice ns/web-1: endpoints[0]: 10.1.0.1:8080 differs in EndpointSlice ns/web-2, endpoints[0], which is used"}},
		{name: "SNAP-45 then what stands first",
			objects: []object{newService("web", nodePort(30080), externalLocal), slice("web-1", "10.1.0.1"), slice("web-2", "10.1.0.1 node=node2")},
			want:    []string{web80, "NodePort node:30080/tcp pods→10.1.0.1 node→10.1.0.1+snat any→10.1.0.1"},
			diags:   []string{"info: EndpointSlice ns/web-2: endpoints[0]: 10.1.0.1:8080 differs in EndpointSlice ns/web-1, endpoints[0], which is used"}},
		{name: "SNAP-46 in order of the text",
			objects: []object{web, slice("web-1", "10.1.0.2", "10.1.0.10", "10.1.0.100")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.100,10.1.0.10,10.1.0.2 any→10.1.0.100,10.1.0.10,10.1.0.2+snat"}},
	})
}

func TestIsLocal(t *testing.T) { // local by nodeName (SNAP-43)
	for _, c := range []struct {
		node string
		want []bool
	}{{"node1", []bool{true, false, false}}, {"Node1", []bool{false, false, false}}, {"", []bool{false, false, false}}} {
		programs, _ := Compile(newConfig(ir.ModeNFTables),
			snapshotOf(newService("web"), slice("web-1", "10.1.0.1", "10.1.0.2 node=", "10.2.0.1")), Facts{NodeName: c.node})
		var got []bool
		for _, b := range only(t, programs.IPv4).Pools[0].Backends {
			got = append(got, b.Local)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("node %q (-want +got):\n%s", c.node, d)
		}
	}
}

// Endpoints, or the verdict, for pods, the node and other clients: fallback to
// terminating endpoints, unusable endpoints, policy Local and no endpoint (TOP-5
// to TOP-8).
func TestFallback(t *testing.T) {
	here := []string{"10.1.0.1", "10.2.0.1"}
	elsewhere := []string{"10.2.0.1", "10.1.0.1 not-ready"}
	nowhere := []string{"10.2.0.1 not-ready", "10.1.0.1 dead"}
	web := func(c ...change) object {
		return newService("web", append([]change{nodePort(30080)}, c...)...)
	}
	const toAll = "pods→10.1.0.1,10.2.0.1 any→10.1.0.1,10.2.0.1+snat"
	run(t, []row{
		{name: "both policies Cluster, an endpoint here", objects: []object{web(), slice("web-1", here...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp " + toAll, "NodePort node:30080/tcp any→10.1.0.1,10.2.0.1+snat"}},
		{name: "both policies Cluster, only elsewhere", objects: []object{web(), slice("web-1", elsewhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp pods→10.2.0.1 any→10.2.0.1+snat", "NodePort node:30080/tcp any→10.2.0.1+snat"}},
		{name: "both policies Cluster, nowhere", objects: []object{web(), slice("web-1", nowhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp reject", "NodePort node:30080/tcp reject"}},
		{name: "internal Local, an endpoint here", objects: []object{web(internalLocal), slice("web-1", here...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1 any→10.1.0.1+snat", "NodePort node:30080/tcp any→10.1.0.1,10.2.0.1+snat"}},
		{name: "internal Local, only elsewhere", objects: []object{web(internalLocal), slice("web-1", elsewhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp drop", "NodePort node:30080/tcp any→10.2.0.1+snat"}},
		{name: "internal Local alone, only elsewhere", objects: []object{newService("web", internalLocal), slice("web-1", elsewhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp drop"}},
		{name: "internal Local, nowhere", objects: []object{web(internalLocal), slice("web-1", nowhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp reject", "NodePort node:30080/tcp reject"}},
		{name: "external Local, an endpoint here", objects: []object{web(externalLocal), slice("web-1", here...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp " + toAll,
				"NodePort node:30080/tcp pods→10.1.0.1,10.2.0.1 node→10.1.0.1,10.2.0.1+snat any→10.1.0.1"}},
		{name: "external Local, only elsewhere", objects: []object{web(externalLocal), slice("web-1", elsewhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp pods→10.2.0.1 any→10.2.0.1+snat",
				"NodePort node:30080/tcp pods→10.2.0.1 node→10.2.0.1+snat drop"}},
		{name: "external Local, nowhere", objects: []object{web(externalLocal), slice("web-1", nowhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp reject", "NodePort node:30080/tcp reject"}},
		{name: "both Local, only elsewhere", objects: []object{web(externalLocal, internalLocal), slice("web-1", elsewhere...)},
			want: []string{"ClusterIP 10.96.0.10:80/tcp drop", "NodePort node:30080/tcp pods→10.2.0.1 node→10.2.0.1+snat drop"}},

		{name: "nothing ready: what is serving and terminating, without hints",
			objects: []object{web(externalLocal), slice("web-1", "10.1.0.1 terminating zone=zone-b", "10.2.0.1 terminating zone=zone-b", "10.2.0.2 dead", "10.2.0.3 unready-serving")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp " + toAll,
				"NodePort node:30080/tcp pods→10.1.0.1,10.2.0.1 node→10.1.0.1,10.2.0.1+snat any→10.1.0.1"}},
		{name: "the lists fall back independently: terminating here beats ready elsewhere",
			objects: []object{web(externalLocal), slice("web-1", "10.1.0.1 terminating", "10.2.0.1")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp pods→10.2.0.1 any→10.2.0.1+snat",
				"NodePort node:30080/tcp pods→10.2.0.1 node→10.2.0.1+snat any→10.1.0.1"}},
		{name: "internal Local: usable elsewhere is a reason to drop, terminating or not",
			objects: []object{newService("web", internalLocal), slice("web-1", "10.2.0.1 terminating")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp drop"}},
		{name: "serving alone is no use", objects: []object{newService("web"), slice("web-1", "10.1.0.1 unready-serving")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp reject"}},
	})
}

// Endpoints that get no new UDP clients and keep their existing ones (DMN-30).
func TestDraining(t *testing.T) {
	dns := func(c ...change) object {
		return newService("dns", append([]change{ports(snapshot.ServicePort{Protocol: "UDP", Port: 53})}, c...)...)
	}
	over := func(protocol string) func(*snapshot.EndpointSlice) {
		return func(e *snapshot.EndpointSlice) { e.Ports[0].Protocol = protocol }
	}
	udp := func(endpoints ...string) object { return editSlice("dns-1", over("UDP"), endpoints...) }
	const to1 = "ClusterIP 10.96.0.10:53/udp pods→10.1.0.1 any→10.1.0.1+snat"
	run(t, []row{
		{name: "terminating beside a ready one, as long as it serves",
			objects: []object{dns(), udp("10.1.0.1", "10.1.0.2 terminating", "10.1.0.3 dead", "10.1.0.4 not-ready")},
			want:    []string{to1, "kept →10.1.0.2"}},
		{name: "in order of the text", objects: []object{dns(), udp("10.1.0.1", "10.1.0.2 terminating", "10.1.0.10 unready-serving")},
			want: []string{to1, "kept →10.1.0.10,10.1.0.2"}},
		{name: "nobody where the terminating ones are used", objects: []object{dns(), udp("10.1.0.1 terminating", "10.1.0.2 dead")},
			want: []string{to1}},
		{name: "also where there is no pool", objects: []object{dns(), udp("10.1.0.1 unready-serving")},
			want: []string{"ClusterIP 10.96.0.10:53/udp reject", "kept →10.1.0.1"}},
		{name: "what the policy leaves out", objects: []object{dns(internalLocal), udp("10.1.0.1", "10.2.0.1", "10.2.0.2 dead")},
			want: []string{to1, "kept →10.2.0.1"}},
		{name: "not what another policy's pool has", objects: []object{dns(internalLocal, nodePort(30053)), udp("10.1.0.1", "10.2.0.1")},
			want: []string{to1, "NodePort node:30053/udp any→10.1.0.1,10.2.0.1+snat"}},
		{name: "what hints leave out", objects: []object{dns(), udp("10.1.0.1 hint=node1", "10.2.0.1 hint=node2")},
			want: []string{to1, "kept →10.2.0.1"}},
		{name: "of UDP ports only",
			objects: []object{newService("dns", ports(snapshot.ServicePort{Protocol: "TCP", Port: 53})),
				editSlice("dns-1", over("TCP"), "10.1.0.1", "10.1.0.2 terminating")},
			want: []string{"ClusterIP 10.96.0.10:53/tcp pods→10.1.0.1 any→10.1.0.1+snat"}},
		{name: "not in a mode that holds its clients itself", mode: ir.ModeUserspace,
			objects: []object{dns(), udp("10.1.0.1", "10.1.0.2 terminating")},
			want:    []string{"ClusterIP 10.96.0.10:53/udp any→10.1.0.1+snat"}},
		{name: "not where the port is another Service's",
			objects: []object{dns(on(2)), udp("10.1.0.1", "10.1.0.2 terminating"),
				newService("older", ports(snapshot.ServicePort{Protocol: "UDP", Port: 53}), on(1))},
			want:  []string{"ClusterIP 10.96.0.10:53/udp reject"},
			diags: []string{"error: Service ns/dns: spec.clusterIPs[0]: 10.96.0.10:53/udp belongs to Service ns/older, which is older: it is ignored here"}},
	})
}

func TestFallbackOfIPVS(t *testing.T) { // policy Local falls back to all endpoints (IPV-4)
	run(t, []row{
		{name: "external Local: the local endpoints for everybody", mode: ir.ModeIPVS,
			objects: []object{newService("web", nodePort(30080), externalLocal), slice("web-1", "10.1.0.1", "10.2.0.1")},
			want: []string{"ClusterIP 10.96.0.10:80/tcp pods→10.1.0.1,10.2.0.1 any→10.1.0.1,10.2.0.1+snat",
				"NodePort node:30080/tcp any→10.1.0.1"}},
		{name: "external Local without a local endpoint: the cluster's", mode: ir.ModeIPVS,
			objects: []object{newService("web", nodePort(30080), externalLocal), slice("web-1", "10.2.0.1")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp pods→10.2.0.1 any→10.2.0.1+snat", "NodePort node:30080/tcp any→10.2.0.1"}},
		{name: "internal Local too, if there is external traffic", mode: ir.ModeIPVS,
			objects: []object{newService("web", nodePort(30080), internalLocal), slice("web-1", "10.2.0.1")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp pods→10.2.0.1 any→10.2.0.1+snat", "NodePort node:30080/tcp any→10.2.0.1+snat"}},
		{name: "internal Local alone: refused", mode: ir.ModeIPVS,
			objects: []object{newService("web", internalLocal), slice("web-1", "10.2.0.1")},
			want:    []string{"ClusterIP 10.96.0.10:80/tcp reject"}},
	})
}

func TestHints(t *testing.T) { // hints (SNAP-44)
	web := newService("web")
	to := func(backends string) []string {
		return []string{"ClusterIP 10.96.0.10:80/tcp pods→" + backends + " any→" + backends + "+snat"}
	}
	for _, c := range []struct {
		name      string
		endpoints []string
		want      []string
		reason    string
	}{
		{"no hints", []string{"10.1.0.1", "10.2.0.1"}, to("10.1.0.1,10.2.0.1"), "all 2 ready endpoints"},
		{"zone hints of all, one for this zone", []string{"10.1.0.1 zone=zone-b", "10.2.0.1 zone=zone-a", "10.2.0.2 zone=zone-b zone=zone-a"},
			to("10.2.0.1,10.2.0.2"), "zone hints for zone-a: 2 of 3 ready endpoints"},
		{"one without zone hints disables them", []string{"10.1.0.1", "10.2.0.1 zone=zone-a"}, to("10.1.0.1,10.2.0.1"),
			"all 2 ready endpoints; zone hints ignored: 10.1.0.1:8080 has none"},
		{"none for this zone disables them", []string{"10.1.0.1 zone=zone-b", "10.2.0.1 zone=zone-c"}, to("10.1.0.1,10.2.0.1"),
			"all 2 ready endpoints; zone hints ignored: none is for zone-a"},
		{"what is not ready has no say", []string{"10.1.0.1 not-ready", "10.1.0.2 terminating", "10.2.0.1 zone=zone-a", "10.2.0.2 zone=zone-b"},
			to("10.2.0.1"), "zone hints for zone-a: 1 of 2 ready endpoints"},
		{"node hints go before zone hints", []string{"10.1.0.1 zone=zone-b hint=node1", "10.2.0.1 zone=zone-a hint=node2"},
			to("10.1.0.1"), "node hints for node1: 1 of 2 ready endpoints"},
		{"node hints that do not name this node leave it to zone hints", []string{"10.1.0.1 zone=zone-b hint=node2", "10.2.0.1 zone=zone-a hint=node2"},
			to("10.2.0.1"), "zone hints for zone-a: 1 of 2 ready endpoints"},
		{"one without node hints disables them", []string{"10.1.0.1", "10.2.0.1 hint=node1"}, to("10.1.0.1,10.2.0.1"),
			"all 2 ready endpoints; node hints ignored: 10.1.0.1:8080 has none"},
		{"node hints for others", []string{"10.2.0.1 hint=node2"}, to("10.2.0.1"), "the only ready endpoint; node hints ignored: none is for node1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs, _ := compileFor(t, newConfig(ir.ModeNFTables), web, slice("web-1", c.endpoints...))
			if d := cmp.Diff(c.want, lines(programs)); d != "" {
				t.Errorf("frontends (-want +got):\n%s", d)
			}
			if got := only(t, programs.IPv4).Pools[0].Origin.Reason; got != c.reason {
				t.Errorf("reason: got %q, want %q", got, c.reason)
			}
		})
	}
	t.Run("hints do not touch the local list", func(t *testing.T) {
		programs, _ := compileFor(t, newConfig(ir.ModeNFTables), newService("web", internalLocal), slice("web-1", "10.1.0.1 zone=zone-b", "10.2.0.1 zone=zone-a"))
		if d := cmp.Diff(to("10.1.0.1"), lines(programs)); d != "" {
			t.Errorf("frontends (-want +got):\n%s", d)
		}
	})
	t.Run("a mode without hints", func(t *testing.T) {
		programs, _ := compileFor(t, newConfig(ir.ModeKernelspace), web, slice("web-1", "10.1.0.1 zone=zone-a"))
		if got, want := only(t, programs.IPv4).Pools[0].Origin.Reason, "the only ready endpoint; zone hints ignored: mode kernelspace has none"; got != want {
			t.Errorf("reason: got %q, want %q", got, want)
		}
	})
	t.Run("SNAP-72 a node without a zone", func(t *testing.T) {
		programs, _ := compileFor(t, newConfig(ir.ModeNFTables), node("node1", "", "192.0.2.11"), web, slice("web-1", "10.1.0.1 zone=zone-a", "10.2.0.1 zone=zone-b"))
		if got, want := only(t, programs.IPv4).Pools[0].Origin.Reason, "all 2 ready endpoints; zone hints ignored: the node has no zone"; got != want {
			t.Errorf("reason: got %q, want %q", got, want)
		}
	})
}

// Reasons are shown to users.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     change
		endpoints  []string
		pool, end  string // reason of the first pool and its first backend
		emptyField string // of the last frontend
		empty      string
	}{
		{"ready", nodePort(30080), []string{"10.1.0.1"}, "the only ready endpoint", "ready", "", ""},
		{"terminating", nodePort(30080), []string{"10.1.0.1 terminating", "10.1.0.2 not-ready"},
			"no endpoint is ready: 1 endpoint serving and terminating", "serving and terminating: no endpoint is ready", "", ""},
		{"local", internalLocal, []string{"10.1.0.1", "10.2.0.1"}, "1 of 2 ready endpoints on node node1", "ready", "", ""},
		{"local and terminating", internalLocal, []string{"10.1.0.1 terminating", "10.2.0.1"},
			"no endpoint is ready on node node1: 1 endpoint serving and terminating", "serving and terminating: no endpoint is ready", "", ""},
		{"none", nodePort(30080), nil, "", "", "spec.ports[0]", "no endpoints"},
		{"one not ready", nodePort(30080), []string{"10.1.0.1 not-ready"}, "", "", "spec.ports[0]", "no ready endpoint: 10.1.0.1:8080 is not ready"},
		{"several not ready", nodePort(30080), []string{"10.1.0.1 not-ready", "10.1.0.2 dead", "10.1.0.3 dead"}, "", "",
			"spec.ports[0]", "no ready endpoint: 10.1.0.1:8080 is not ready, nor 2 others"},
		{"internal Local, elsewhere", internalLocal, []string{"10.2.0.1"}, "", "",
			"spec.internalTrafficPolicy", "internalTrafficPolicy Local: no ready endpoint on node node1"},
		{"external Local, elsewhere", func(s *snapshot.Service) { nodePort(30080)(s); externalLocal(s) }, []string{"10.2.0.1"},
			"the only ready endpoint", "ready", "spec.externalTrafficPolicy", "externalTrafficPolicy Local: no ready endpoint on node node1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs, _ := compileFor(t, newConfig(ir.ModeNFTables), newService("web", c.change), slice("web-1", c.endpoints...))
			s := only(t, programs.IPv4)
			var pool, end ir.Origin
			if len(s.Pools) > 0 {
				pool, end = s.Pools[0].Origin, s.Pools[0].Backends[0].Origin
				if want := "EndpointSlice ns/web-1: endpoints[0]"; end.Object+": "+end.Field != want {
					t.Errorf("backend: got %s, want %s", end, want)
				}
			}
			if pool.Reason != c.pool || end.Reason != c.end {
				t.Errorf("got pool %q and backend %q, want %q and %q", pool.Reason, end.Reason, c.pool, c.end)
			}
			empty := s.Frontends[len(s.Frontends)-1].FallbackOrigin
			if empty.Field != c.emptyField || empty.Reason != c.empty {
				t.Errorf("empty: got %q %q, want %q %q", empty.Field, empty.Reason, c.emptyField, c.empty)
			}
		})
	}
}

package nftables

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	rules "github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// maglevProgram returns two Services with all protocols at 203.0.113.10 and node port 30080, on a
// node of the topology, with backends on both nodes.
func maglevProgram(f ir.Family, node, addr, pods string) *ir.Program {
	p := &ir.Program{Family: f, Node: nftest.Node(f)}
	p.Node.Name, p.Node.IP = node, nftest.Addr(f, addr)
	p.Node.Addrs = []netip.Addr{nftest.Addr(f, addr), nftest.Addr(f, pods)}
	for _, proto := range []ir.Protocol{ir.TCP, ir.UDP} {
		why := ir.Origin{Object: "Service ns/" + proto.String()}
		port := ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: proto.String()}, Protocol: proto}
		s := ir.Service{Name: port.Service, Origin: why, Pools: []ir.Pool{{Port: port, Origin: why}}}
		for _, b := range []string{"10.244.1.10:8080", "10.244.1.11:8080", "10.244.2.10:8080", "10.244.2.11:8080"} {
			s.Pools[0].Backends = append(s.Pools[0].Backends, ir.Backend{AddrPort: nftest.AddrPort(f, b), Origin: why})
		}
		for _, m := range []ir.Match{{Addr: nftest.Addr(f, "203.0.113.10"), Protocol: proto, Port: 80}, {Protocol: proto, Port: 30080}} {
			kind := ir.LoadBalancer
			if m.IsNodePort() {
				kind = ir.NodePort
			}
			s.Frontends = append(s.Frontends, ir.Frontend{Kind: kind, Match: m, Port: port, Origin: why,
				Routes: []ir.Route{{From: ir.Any, SNAT: true, Origin: why}}})
		}
		nftest.Stable(&s, 251)
		p.Services = append(p.Services, s)
	}
	return p
}

// A client's port determines its backend, at a load balancer's address and at a node port. It is
// the one that the evaluators of rules and of the IR predict, and the same if the network sends the
// packets to another node.
func TestClientsChooseSameBackendOnAllNodes(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	if err := topo.Namespace("ext").Sysctl("ipv4/tcp_max_tw_buckets=0"); err != nil { // a port can be used again at once
		t.Fatal(err)
	}
	nodes := []struct{ name, addr, pods string }{{"node1", "192.0.2.11", "10.244.1.1"}, {"node2", "192.0.2.12", "10.244.2.1"}}
	for _, f := range ir.Families() {
		for _, at := range nodes {
			ns := topo.Namespace(at.name)
			target, err := OpenIn(ns.Fd(), apply.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()
			p := maglevProgram(f, at.name, at.addr, at.pods)
			if _, err := once(t, node{ns, target}, rules.NewTables(rules.Lower(p))); err != nil {
				t.Fatal(err)
			}
			meaning := sim.NewEvaluator(p)
			written := nfteval.NewEvaluator(rules.Lower(p), sim.NewOwn(f.Loopback(), p.Node.Addrs))
			route(t, topo, f, at.addr)
			met := map[netip.AddrPort]int{}
			for n := range 120 {
				proto, from := []ir.Protocol{ir.TCP, ir.UDP}[n%2], []string{"ext", "ext.201", "ext.202"}[n%3]
				sport, to := uint16(20_000+177*n), nftest.AddrPort(f, "203.0.113.10:80")
				if n%4 < 2 {
					to = nftest.AddrPort(f, at.addr+":30080")
				}
				pkt := sim.Packet{Src: nftest.Addr(f, map[string]string{"ext": "192.0.2.200", "ext.201": "192.0.2.201", "ext.202": "192.0.2.202"}[from]),
					SrcPort: sport, Dst: to.Addr(), Port: to.Port(), Protocol: proto, In: "eth0"}
				want, same := meaning.Outcome(pkt, nil), written.Outcome(pkt, nil)
				if len(want.Destinations) != 1 || !same.Equal(want) {
					t.Fatalf("%s: %v: the rules mean %s, wanted is %s", at.name, pkt, same, want)
				}
				a, err := topo.Try(from, proto.String(), sport, to, time.Minute)
				if err != nil {
					t.Fatalf("%s: %v: %v", at.name, pkt, err)
				}
				if a.Server != want.Destinations[0].AddrPort {
					t.Errorf("%s: %v met %s, wanted is %s", at.name, pkt, a.Server, want)
				}
				met[a.Server]++
			}
			if len(met) != 4 {
				t.Errorf("%s: only %v were met", at.name, met)
			}
		}
	}
}

// route makes clients reach the load balancer through a node.
func route(t *testing.T, topo *applytest.Topology, f ir.Family, gateway string) {
	t.Helper()
	ns := topo.Namespace("ext")
	ip := map[ir.Family]string{ir.IPv4: "-4", ir.IPv6: "-6"}[f]
	dst := map[ir.Family]string{ir.IPv4: "203.0.113.0/24", ir.IPv6: "2001:db8:203::/64"}[f]
	if _, err := ns.Run(ns.Command(t.Context(), "ip", ip, "route", "replace", dst, "via", nftest.Addr(f, gateway).String(), "dev", "eth0")); err != nil {
		t.Fatal(fmt.Errorf("route: %w", err))
	}
}

// A connection whose packets arrive at another node reaches the same backend over UDP, from another
// source address. Over TCP it ends, since the backend has no connection from the other node's
// address.
func TestConnectionsThatMove(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	f := ir.IPv4
	for _, at := range [][3]string{{"node1", "192.0.2.11", "10.244.1.1"}, {"node2", "192.0.2.12", "10.244.2.1"}} {
		ns := topo.Namespace(at[0])
		target, err := OpenIn(ns.Fd(), apply.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer target.Close()
		if _, err := once(t, node{ns, target}, rules.NewTables(rules.Lower(maglevProgram(f, at[0], at[1], at[2])))); err != nil {
			t.Fatal(err)
		}
		if err := ns.Sysctl("netfilter/nf_conntrack_tcp_be_liberal=1"); err != nil {
			t.Fatal(err)
		}
	}
	to := nftest.AddrPort(f, "203.0.113.10:80")
	for n := range 8 {
		for _, proto := range []string{"udp", "tcp"} {
			route(t, topo, f, "192.0.2.11")
			conn, err := topo.Namespace("ext").Dial(t.Context(), proto, netip.AddrPortFrom(netip.Addr{}, uint16(30_000+n)), to)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			before, err := applytest.Query(conn, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			route(t, topo, f, "192.0.2.12")
			after, err := applytest.Query(conn, time.Minute)
			switch {
			case proto == "tcp" && (err == nil || applytest.Failure(err) != "reset"):
				t.Errorf("tcp, port %d: %s, %v, wanted is an end", 30_000+n, after, err)
			case proto == "udp" && (err != nil || after.Server != before.Server || after.Client.Addr() == before.Client.Addr()):
				t.Errorf("udp, port %d: before %s, after %s, %v", 30_000+n, before, after, err)
			}
		}
	}
}

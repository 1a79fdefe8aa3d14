package packets

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// stableServices returns Services that always have an endpoint, with every kind of route.
func stableServices() world {
	both, all := []string{applytest.IPv4, applytest.IPv6}, []string{"TCP", "UDP"}
	return world{
		0: {Type: "ClusterIP", Families: both, Protocols: all, Endpoints: []string{"pod1a"}},
		1: {Type: "LoadBalancer", Families: both, Protocols: all, Endpoints: []string{"pod2a"}},
		2: {Type: "LoadBalancer", Families: both, Protocols: all, Endpoints: []string{"pod1a", "pod2a"}, ExternalLocal: true, Ranges: []string{"192.0.2.0/24", "2001:db8:0:1::/64"}},
		3: {Type: "NodePort", Families: both, Protocols: all, Endpoints: []string{"pod1c"}, Affinity: true},
	}
}

// gapProbes returns probes of the lasting Services.
func gapProbes() []applytest.Probe {
	return []applytest.Probe{
		{From: "pod1b", Proto: "tcp", To: to(clusterIP(0, applytest.IPv4), 80)},
		{From: "pod1b", Proto: "tcp", To: to(clusterIP(0, applytest.IPv6), 80)},
		{From: "node1", Proto: "udp", To: to(clusterIP(0, applytest.IPv4), 53)},
		{From: "ext", Proto: "tcp", To: to("192.0.2.11", nodePort(1, "TCP"))},
		{From: "ext", Proto: "udp", To: to("2001:db8:0:1::11", nodePort(1, "UDP"))},
		{From: "ext", Proto: "tcp", To: to(vip(1, applytest.IPv4), 80)},
		{From: "ext", Proto: "tcp", To: to(vip(2, applytest.IPv4), 80)},
		{From: "ext.201", Proto: "tcp", To: to(vip(2, applytest.IPv6), 80)},
		{From: "pod1b", Proto: "tcp", To: to(clusterIP(3, applytest.IPv4), 80)},
		{From: "node1", Proto: "tcp", To: to("192.0.2.11", nodePort(3, "TCP"))},
	}
}

// A kept connection stays open during the test.
type keptConn struct {
	probe  applytest.Probe
	conn   net.Conn
	server netip.AddrPort
}

func keepOpen(t *testing.T, topo *applytest.Topology, probes []applytest.Probe) (all []*keptConn) {
	t.Helper()
	for _, p := range probes {
		if p.Proto != "tcp" {
			continue
		}
		ns, from, err := topo.Source(p.From, p.To.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := ns.Dial(context.Background(), "tcp", netip.AddrPortFrom(from, 0), p.To)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		t.Cleanup(func() { conn.Close() })
		a, err := applytest.Query(conn, applytest.ReplyTimeout)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		all = append(all, &keptConn{p, conn, a.Server})
	}
	return all
}

// query sends a query over the connection.
func (k *keptConn) query() error { return k.same(applytest.Query(k.conn, applytest.ReplyTimeout)) }

// same expects a reply from the connection's server.
func (k *keptConn) same(a applytest.Answer, err error) error {
	if err == nil && a.Server != k.server {
		err = fmt.Errorf("%s answers, it was %s", a.Server, k.server)
	}
	return err
}

// TestUpdatesLeaveNoGap checks that, while Services change, connections to those that always have
// an endpoint never fail, and open connections stay.
func TestUpdatesLeaveNoGap(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		topo := applytest.TopologyFor(t)
		m := newMachine(t, topo.Namespace("node1"))
		config := filepath.Join(takeoverDir, "config.yaml")
		w, r := stableServices(), newWorldRandom(3)
		m.must(0, m.apply(p, config, m.file("snapshot.json", w.snapshot(t))))
		probes := gapProbes()
		open := keepOpen(t, topo, probes)
		start, updates := time.Now(), applytest.Of(10, 80)
		underLoad(t, topo, 10, probes, func() {
			for n := range updates {
				r.update(w)
				m.must(0, m.apply(p, config, m.file("snapshot.json", w.snapshot(t))))
				checkReplies(t, topo, w, n)
				if n%10 == 9 {
					t.Logf("%d updates", n+1) // shows progress on a slow machine
				}
				for _, k := range open {
					if err := k.query(); err != nil {
						t.Fatalf("update %d: connection %s: %v", n, k.probe, err)
					}
				}
			}
		})
		t.Logf("%d updates in %s, %d connections kept open", updates, time.Since(start).Round(time.Millisecond), len(open))
	})
}

// update changes the endpoints of a lasting Service, or another Service.
func (r worldRandom) update(w world) {
	const last = 3
	if r.chance(3) {
		i := last + 1 + r.IntN(6)
		if w[i] == nil || r.chance(2) {
			w[i] = r.service()
		} else {
			delete(w, i)
		}
		return
	}
	s := w[r.IntN(last+1)]
	for {
		if moved := r.move(s.Endpoints); !s.ExternalLocal || slices.ContainsFunc(moved, onNode1) {
			s.Endpoints = moved
			return
		}
	}
}

func onNode1(pod string) bool { return pod[3] == '1' }

// checkReplies sends a query to each lasting Service, to check that the update is applied.
func checkReplies(t *testing.T, topo *applytest.Topology, w world, n int) {
	t.Helper()
	for i := range 4 {
		at := to(clusterIP(i, applytest.IPv4), 80)
		a, err := topo.Try("ext.202", "tcp", 0, at, applytest.ReplyTimeout)
		if name := topo.Name(a.Server.Addr()); err != nil || !slices.Contains(w[i].Endpoints, name) {
			t.Errorf("update %d: %s: %s answers, %v; want one of %s", n, at, name, err, w[i].Endpoints)
		}
	}
}

package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/sim"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// crowded returns a Service without affinity, whose backends are on both nodes. With shared, so many
// frontends use its pools that these are shared.
func crowded(f ir.Family, proto ir.Protocol, shared bool) *ir.Program {
	p := nftest.Sticky(f, proto)
	s := &p.Services[0]
	for i := range s.Pools {
		pool := &s.Pools[i]
		pool.Affinity = nil
		for j := range 6 {
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: nftest.AddrPort(f, fmt.Sprintf("10.244.1.%d:8080", 100+j)), Local: true})
		}
	}
	if shared {
		nftest.Crowd(f, s, 1, 100)
	}
	return p
}

// Frontends of a shared pool are served, rejected and masqueraded as the Program says, in both
// families and all protocols.
func TestSharedPoolPackets(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	ns := topo.Namespace("node1")
	target, err := OpenIn(ns.Fd(), apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	clients := map[string]string{"ext": "192.0.2.200", "node1": "192.0.2.11", "pod1a": "10.244.1.10", "pod1b": "10.244.1.11"}
	for _, f := range ir.Families() {
		for n, proto := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP, ir.TCP} {
			p := crowded(f, proto, true)
			if n == 3 {
				nftest.Stable(&p.Services[0], 251)
			}
			if !slices.ContainsFunc(rules.Lower(p).Sets, func(s rules.Set) bool { return rules.IsPool(s.Name) }) {
				t.Fatal("no pool is shared")
			}
			if _, err := once(t, node{ns, target}, rules.NewTables(rules.Lower(p))); err != nil {
				t.Fatal(err)
			}
			meaning := sim.NewEvaluator(p)
			copied := p.Services[0].Frontends[5].Match.Addr // routed from pods and the node only
			for client, addr := range clients {
				to := []netip.AddrPort{nftest.AddrPort(f, "10.96.0.10:80"), nftest.AddrPort(f, "203.0.113.10:80"), nftest.AddrPort(f, "192.0.2.11:30080")}
				if client != "ext" {
					to = append(to, netip.AddrPortFrom(copied, 80))
				}
				for _, to := range to {
					pkt := sim.Packet{Src: nftest.Addr(f, addr), Dst: to.Addr(), Port: to.Port(), Protocol: proto, In: "eth0"}
					if client == "node1" {
						pkt.In = ""
					}
					outcome := meaning.Outcome(pkt, nil)
					met := map[netip.AddrPort]bool{}
					for range 8 {
						a, err := topo.Try(client, proto.String(), 0, to, time.Minute)
						if err != nil {
							t.Fatalf("%s: %s to %s: %v", proto, client, to, err)
						}
						i := slices.IndexFunc(outcome.Destinations, func(d sim.Destination) bool { return d.AddrPort == a.Server })
						if masqueraded := a.Client.Addr() != pkt.Src; i < 0 || client != "node1" && masqueraded != outcome.Destinations[i].SNAT {
							t.Fatalf("%s: %s to %s meets %v, want %v", proto, client, to, a, outcome)
						}
						met[a.Server] = true
					}
					if len(met) < 2 {
						t.Errorf("%s: %s to %s meets %v only", proto, client, to, met)
					}
				}
			}
		}
	}
}

// A change that makes a pool shared, or not shared, is atomic: no connection fails meanwhile.
func TestPoolBecomesShared(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	target, err := OpenIn(topo.Namespace("node1").Fd(), apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	few, many := ir.NewPrograms(crowded(ir.IPv4, ir.TCP, false), crowded(ir.IPv6, ir.TCP, false)), ir.NewPrograms(crowded(ir.IPv4, ir.TCP, true), crowded(ir.IPv6, ir.TCP, true))
	replace(t, target, few)
	done, failed := make(chan struct{}), make(chan error, 1)
	var tries atomic.Int32
	go func() {
		defer close(failed)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			tries.Add(1)
			if _, err := topo.Try([]string{"ext", "node1", "pod1b"}[n%3], "tcp", 0, nftest.AddrPort(ir.Families()[n%2], "10.96.0.10:80"), time.Minute); err != nil {
				failed <- err
				return
			}
		}
	}()
	now, other := few, many
	for n := 0; n < 20 || tries.Load() < 60 && len(failed) == 0; n++ {
		var changes ir.Changes
		for f, p := range other.All() {
			*changes.At(f) = ir.Diff(now.Of(f), p)
		}
		plan := target.PlanChanges(target.Applied().From(changes))
		if result, err := target.Commit(t.Context(), plan); err != nil || result.Error() != nil {
			t.Fatal(err, result.Error())
		}
		now, other = other, now
	}
	close(done)
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if err := target.Read(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if plan := target.Plan(now).(*Plan); !plan.Empty() {
		t.Errorf("changes do not lead to the whole: %v", slices.Collect(plan.Operations))
	}
}

// Random histories of a Service whose ports share pools or not, with slots that are kept, end as the
// last version does.
func TestHistoriesOfSharedPools(t *testing.T) {
	random := rand.New(rand.NewPCG(applytest.Seed(t), 7))
	n := newNode(t)
	program := func(s *ir.Service) ir.Programs {
		p := &ir.Program{Family: ir.IPv4, Node: nftest.Node(ir.IPv4)}
		if s != nil {
			p.Services = []ir.Service{*s}
		}
		return ir.NewPrograms(p, &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)})
	}
	replace(t, n.Dataplane, program(nil))
	var old *ir.Service
	became := [2]int{}
	for step := range 40 {
		now := irtest.Ports(random.IntN)
		changes := ir.Changes{}
		changes.IPv4 = []ir.Change{{Name: now.Name, Old: old, New: now}}
		plan := n.PlanChanges(n.Applied().From(changes)).(*Plan)
		if result, err := n.Commit(t.Context(), plan); err != nil || result.Error() != nil {
			t.Fatalf("step %d: %v %v", step, err, result.Error())
		}
		isPool := func(s *rules.Set) bool { return rules.IsPool(s.Name) }
		if c := plan.families.IPv4; c != nil {
			for i, sets := range [][]*rules.Set{c.sets.create, c.sets.removed} {
				if slices.ContainsFunc(sets, isPool) {
					became[i]++
				}
			}
		}
		want := program(now)
		if err := n.Read(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if rest := n.Plan(want).(*Plan); !rest.Empty() {
			t.Fatalf("step %d: still to do: %v", step, slices.Collect(rest.Operations))
		}
		old = now
	}
	if became[0] == 0 || became[1] == 0 {
		t.Errorf("%d pools became shared, %d stopped", became[0], became[1])
	}
}

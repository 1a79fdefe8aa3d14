package flow_test

import (
	"slices"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/sim"
)

// TestReach: who may reach what is what ir/sim says of each packet to a frontend.
func TestReach(t *testing.T) {
	start := applytest.Seed(t)
	where := flow.Network{Here: reviewtest.Prefixes("10.244.1.0/24", "fd00:10:244:1::/64"), Pods: reviewtest.Prefixes("10.244.0.0/16", "fd00:10:244::/48")}
	named, unnamed := 0, 0
	for _, mode := range ir.Modes() {
		for n := range uint64(20) {
			r := reviewtest.New(start, n)
			for _, p := range ir.Present(r.World(mode).Compile(t)) {
				services, err := flow.Reach(t.Context(), where, p)
				if err != nil {
					t.Fatal(err)
				}
				var all []*flow.Flow
				for i := range services {
					for j := range services[i].Flows {
						all = append(all, &services[i].Flows[j])
					}
				}
				e, frontends := sim.NewEvaluator(p), map[ir.Match]bool{}
				for i := range p.Services {
					for j := range p.Services[i].Frontends {
						frontends[p.Services[i].Frontends[j].Match] = true
					}
				}
				for _, pkt := range r.PacketsOf(p, p, all) {
					// No client beside the node has the address of a Service.
					if pkt.Src == pkt.Dst && !pkt.FromNode() || !frontends[ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port}] &&
						(!frontends[ir.Match{Protocol: pkt.Protocol, Port: pkt.Port}] || !p.Node.HasAddr(pkt.Dst)) {
						continue
					}
					want := e.Outcome(pkt, nil)
					at := slices.IndexFunc(all, func(one *flow.Flow) bool { return (&reviewtest.Scope{Where: where, A: p, B: p}).Holds(one, pkt) })
					switch {
					case at < 0 && want.Fate != sim.NotOurs:
						t.Fatalf("-seed=%d, %s, world %d: %+v is %s, and is not named", start, mode, n, pkt, want)
					case at < 0:
						unnamed++
					case all[at].Change.After != want.Fate || len(all[at].Change.Added) != len(want.Destinations):
						t.Fatalf("-seed=%d, %s, world %d: %+v is %s, and is named %s", start, mode, n, pkt, want, all[at].Change.String())
					default:
						named++
					}
				}
			}
		}
	}
	t.Logf("%d packets are named, %d are not", named, unnamed)
	if named == 0 || unnamed == 0 {
		t.Error("the test shows nothing")
	}
}

package migrate_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/migrate"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/sim"
)

// migrate predicts a difference between modes iptables and nftables exactly for those recorded
// cases in which packets under real kube-proxy had different results.
func TestMigrateConformance(t *testing.T) {
	modes := [...]ir.Mode{ir.ModeIPTables, ir.ModeNFTables}
	var records [2]*applytest.Records
	for i, mode := range modes {
		var err error
		if records[i], err = applytest.LoadRecords(os.DirFS(conformanceDir), "expected/"+string(mode)+".json"); err != nil {
			t.Fatal(err)
		}
	}
	same, different := 0, 0
	for _, family := range []string{applytest.IPv4, applytest.IPv6} {
		cases, err := applytest.LoadCases(os.DirFS(conformanceDir+"/cases"), family)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			if c.Daemon || records[0].Results[family][c.Name] == nil || records[1].Results[family][c.Name] == nil {
				continue
			}
			c.Each(t, func(n int, stage applytest.Step, cluster []byte) {
				snap, _ := reviewtest.Decode(cluster)
				var sides [2]ir.Programs
				for m, mode := range modes {
					text, err := c.ConfigFile(string(mode))
					if err != nil {
						t.Fatal(err)
					}
					sides[m], _ = reviewtest.Compile(t, reviewtest.ParseConfig(t, mode, text), snap, topologyFacts())
				}
				var all []*flow.Flow
				for _, f := range ir.Families() {
					a, b := sides[0].Of(f), sides[1].Of(f)
					if a == nil || b == nil {
						continue
					}
					services, doubts, _, err := migrate.Prove(t.Context(), flow.Network{}, a, b)
					if err != nil || len(doubts) > 0 {
						t.Fatal(err, doubts)
					}
					for s := range services {
						for k := range services[s].Flows {
							all = append(all, &services[s].Flows[k])
						}
					}
				}
				for j := range stage.Flows {
					f := &stage.Flows[j]
					if !predictable(f) {
						continue
					}
					key := f.Key(n, j+1)
					where := fmt.Sprintf("%s/%s/%s", family, c.Name, key)
					var want, got [2]conformanceOutcome
					unstable := false
					var pkts [2]sim.Packet
					for m := range modes {
						recorded := records[m].Recorded(family, c.Name, key)
						unstable = unstable || recorded == nil || recorded["unstable"] != nil
						if unstable {
							break
						}
						want[m] = ofRules(t, recorded)
						pkts[m] = traceOf(t, f, snap, sides[m]).Packet
						got[m] = predict(f, pkts[m], sim.Trace(sides[m].Of(ir.FamilyOf(pkts[m].Dst)), pkts[m]))
					}
					if unstable {
						continue
					}
					if pkts[0] != pkts[1] {
						t.Fatalf("%s: %+v and %+v", where, pkts[0], pkts[1])
					}
					p := sides[0].Of(ir.FamilyOf(pkts[0].Dst))
					q := sides[1].Of(ir.FamilyOf(pkts[0].Dst))
					in := &reviewtest.Scope{A: p, B: q}
					named := slices.ContainsFunc(all, func(one *flow.Flow) bool { return in.Holds(one, pkts[0]) })
					predicted := named && !sameOutcome(f, got[0], got[1]) // as far as the flow records anything
					switch recorded := !sameOutcome(f, want[0], want[1]); {
					case recorded != predicted:
						t.Errorf("%s: recorded as different: %t, predicted: %t\n%s: %+v\n%s: %+v", where, recorded, predicted, modes[0], want[0], modes[1], want[1])
					case recorded:
						different++
					default:
						same++
					}
				}
			})
		}
	}
	t.Logf("%d flows differ between the modes, %d do not", different, same)
	if different == 0 || same == 0 {
		t.Error("the test shows nothing")
	}
}

// traceOf traces the first packet of a recorded flow.
func traceOf(t *testing.T, f *applytest.Flow, snap *snapshot.Snapshot, programs ir.Programs) trace.Trace {
	t.Helper()
	dst, proto, err := f.Target()
	if err != nil {
		t.Fatal(err)
	}
	s := trace.NewTracer(&review.Input{Snapshot: snap, Facts: topologyFacts(), OnlyHere: true}, programs)
	traced, err := s.Trace(sourceOf(t, f.From, dst.Addr()), dst.String()+"/"+proto)
	if err != nil {
		t.Fatal(err)
	}
	return traced
}

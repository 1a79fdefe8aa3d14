package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/sim"
)

// What migrate predicts for the recorded cases between modes iptables and nftables is
// where, and only where, real packets under real kube-proxy met another fate in the other mode.
func TestMigrateConformance(t *testing.T) {
	exceptions, err := applytest.LoadExceptions("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	modes := [...]ir.Mode{ir.ModeIPTables, ir.ModeNFTables}
	var records [2]*applytest.Records
	for i, mode := range modes {
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
			eachStage(t, c, func(n int, stage applytest.Step, cluster []byte) {
				snap, _ := decode(cluster)
				var sides [2]ir.Programs
				for m, mode := range modes {
					text, err := c.ConfigFile(string(mode))
					if err != nil {
						t.Fatal(err)
					}
					sides[m], _ = compile(t, parseConfig(t, mode, text), snap, topologyFacts())
				}
				var all []*flow.Flow
				for _, f := range ir.Families() {
					a, b := sides[0].Of(f), sides[1].Of(f)
					if a == nil || b == nil {
						continue
					}
					services, doubts, _, err := proveModes(t.Context(), flow.Network{}, a, b)
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
					for m, mode := range modes {
						recorded, _ := records[m].Want(string(mode), family, c.Name, key, exceptions)
						unstable = unstable || recorded == nil || recorded["unstable"] != nil
						if unstable {
							break
						}
						want[m] = ofRules(t, recorded)
						pkts[m] = packetOf(t, f, snap, sides[m])
						got[m] = predict(f, pkts[m], sim.Trace(programFor(sides[m], pkts[m].Dst), pkts[m]))
					}
					if unstable {
						continue
					}
					if pkts[0] != pkts[1] {
						t.Fatalf("%s: %+v and %+v", where, pkts[0], pkts[1])
					}
					p := sides[0].Of(ir.FamilyOf(pkts[0].Dst))
					q := sides[1].Of(ir.FamilyOf(pkts[0].Dst))
					in := &scope{flow.Network{}, p, q}
					named := slices.ContainsFunc(all, func(one *flow.Flow) bool { return in.holds(one, pkts[0]) })
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

// packetOf returns the first packet of a recorded flow, as proxyc trace has it.
func packetOf(t *testing.T, f *applytest.Flow, snap *snapshot.Snapshot, programs ir.Programs) sim.Packet {
	t.Helper()
	dst, proto, err := f.Target()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{snap: snap, node: "node1", programs: programs, interfaces: topologyFacts().Interfaces, known: true}
	pkt, _, err := s.packet(sourceOf(t, f.From, dst.Addr()), dst.String()+"/"+proto)
	if err != nil {
		t.Fatal(err)
	}
	return pkt
}

func TestNeighbours(t *testing.T) {
	const dump = `*nat
:KUBE-SERVICES - [0:0]
:CNI-DN-1 - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A CNI-DN-1 -s 10.244.1.0/24 -p tcp -j CNI-HOSTPORT-SETMARK
[1:60] -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-B
-A KUBE-SEP-B -p tcp -j DNAT --to-destination 10.244.1.1:80
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
-A KUBE-FORWARD -g MY-AUDIT
-A cali-FORWARD -j ACCEPT
-A cali-FORWARD -m comment --comment "never -j KUBE-MARK-DROP" -j ACCEPT
-A KUBE-FORWARD -m comment --comment "was -j OTHERS" -j ACCEPT
-A KUBE-FORWARD -m comment --comment "counts"
COMMIT
`
	found, err := neighbours("node1.save", dump)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"table nat: chain CNI-HOSTPORT-SETMARK leads to KUBE-MARK-MASQ", "table filter: chain KUBE-FORWARD leads to MY-AUDIT"}
	if len(found) != len(want) {
		t.Fatalf("found %d: %s", len(found), strings.Join(found, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(found[i], "node1.save: "+want[i]) {
			t.Errorf("got %s, want %s", found[i], want[i])
		}
	}
}

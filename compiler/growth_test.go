package compiler

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// crowds are objects that conflict with each other, n of each kind. Number 0
// wins.
var crowds = map[string]struct {
	mode ir.Mode
	add  func(s *snapshot.Snapshot, i int)
	each int // findings about each object, at most
}{
	"contested addresses": {ir.ModeNFTables, func(s *snapshot.Snapshot, i int) {
		crowd(i, externalIPs("198.18.0.1", "198.18.0.2", "198.18.0.3"), manyPorts(20, false))(s)
	}, 3},
	"contested node ports": {ir.ModeNFTables, func(s *snapshot.Snapshot, i int) {
		crowd(i, nodePort(30080))(s)
	}, 1},
	"hidden node ports": {ir.ModeIPTables, func(s *snapshot.Snapshot, i int) {
		crowd(i, externalIPs("192.0.2.11"), manyPorts(20, true))(s)
	}, 3},
	"shared endpoints": {ir.ModeIPVS, func(s *snapshot.Snapshot, i int) {
		crowd(i)(s)
		slice(fmt.Sprintf("s%05d-1", i), "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4")(s)
	}, 1},
	"overlapping source ranges": {ir.ModeNFTables, func(s *snapshot.Snapshot, i int) {
		crowd(i, loadBalancer("203.0.113.1"), ports(snapshot.ServicePort{Port: int32(1 + i)}),
			ranges("10.0.0.0/8", fmt.Sprintf("10.%d.0.0/16", i%256), fmt.Sprintf("10.0.%d.0/24", i%256)))(s)
	}, 0},
	"one health port": {ir.ModeNFTables, func(s *snapshot.Snapshot, i int) {
		crowd(i, loadBalancer(fmt.Sprintf("203.0.%d.%d", i/250, 1+i%250)), externalLocal)(s)
	}, 0},
}

func crowdName(i int) string { return fmt.Sprintf("s%05d", i) }

func crowd(i int, change ...change) object {
	return newService(crowdName(i), append(change, clusterIP(fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)))...)
}

// Cost and findings grow linearly with the number of conflicting objects. The
// cost and findings of changing one loser do not depend on their number. A change
// of the winner is reported to all losers.
func TestCrowdsGrowLinearly(t *testing.T) {
	for name, of := range crowds {
		t.Run(name, func(t *testing.T) {
			const n = 200
			var small, large crowdCost
			for _, at := range []struct {
				n    int
				cost *crowdCost
			}{{n, &small}, {2 * n, &large}} {
				*at.cost = costOfCrowd(at.n, of.mode, of.add)
				for what, findings := range map[string]int{"all": at.cost.found, "another winner": at.cost.reported} {
					if most := of.each * (at.n + 1); findings > most {
						t.Errorf("%s: %d findings about %d objects, want at most %d", what, findings, at.n, most)
					}
				}
			}
			if small.last > 2*of.each || large.last > 2*of.each {
				t.Errorf("one that wins nothing: %d findings among %d, %d among %d, want at most %d", small.last, n, large.last, 2*n, 2*of.each)
			}
			for what, bytes := range map[string][2]uint64{"all": {small.all, large.all}, "one that wins nothing": {small.one, large.one},
				"another winner": {small.winner, large.winner}} {
				if bytes[1] > bytes[0]*5/2 {
					t.Errorf("%s: %d bytes for %d objects, %d for %d", what, bytes[0], n, bytes[1], 2*n)
				}
			}
		})
	}
}

// crowdCost is the cost of a crowd: findings, and allocated bytes.
type crowdCost struct {
	found, last, reported int
	all, one, winner      uint64
}

func costOfCrowd(n int, mode ir.Mode, add func(*snapshot.Snapshot, int)) (cost crowdCost) {
	snap := snapshotOf()
	for i := range n {
		add(snap, 1+i)
	}
	var c *Compiler
	cost.all = allocated(func() { c = New(newConfig(mode), snap, Facts{NodeName: "node1"}) })
	cost.found = len(c.Diagnostics())
	update := func(i int) (bytes uint64, reported int) {
		add(snap, i)
		var findings Findings
		bytes = allocated(func() { _, findings = c.Update([]ir.Name{ns(crowdName(i))}) })
		return bytes, len(findings.List())
	}
	cost.one, cost.last = update(n + 1)
	cost.winner, cost.reported = update(0)
	return cost
}

// allocated returns the number of bytes that do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

package serve

import (
	"fmt"
	"maps"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Only maxSeries service ports have series of their own. Series never decrease, and their sum is that of
// all, while Services are created and removed.
func TestSeriesAreBounded(t *testing.T) {
	port := func(i int) ir.ServicePort {
		return ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: fmt.Sprint(i)}}
	}
	sums := map[ir.ServicePort]apply.Traffic{}
	own, last := map[ir.ServicePort]bool{}, map[ir.ServicePort]apply.Traffic{}
	before, removed := map[ir.ServicePort]apply.Traffic{}, uint64(0)
	for step := range 20 {
		for i := range maxSeries + 50 + step {
			tr := sums[port(i)]
			tr.Connections += uint64(1 + i%7)
			sums[port(i)] = tr
		}
		if step == 10 { // one with a series of its own, and one of the others
			for p := range sums {
				if own[p] != (removed == 0) || sums[p].Connections == 0 {
					continue
				}
				if own[p] {
					removed = sums[p].Connections
				}
				delete(sums, p)
				if !own[p] {
					break
				}
			}
		}
		all := maps.Clone(sums)
		last = bound(all, own, last)
		if len(all) > maxSeries+1 {
			t.Fatalf("%d series", len(all))
		}
		for p, tr := range before {
			if now, ok := all[p]; ok && now.Connections < tr.Connections {
				t.Errorf("step %d: %v decreases from %d to %d", step, p, tr.Connections, now.Connections)
			}
		}
		if all[others].Connections == 0 && step > 0 {
			t.Error("the others are not counted")
		}
		before = all
	}
}

// Other namespaces than the selected ones have no series.
func TestSeriesOfNamespaces(t *testing.T) {
	sums := map[ir.ServicePort]apply.Traffic{}
	for _, ns := range []string{"a", "b"} {
		for _, protocol := range []ir.Protocol{ir.TCP, ir.UDP} { // one replaces the other
			sums[ir.ServicePort{Service: ir.Name{Namespace: ns, Name: "s"}, Protocol: protocol}] = apply.Traffic{Connections: 2}
		}
	}
	got := portsIn(sums, []string{"b"})
	if len(got) != 1 || got[ir.ServicePort{Service: ir.Name{Namespace: "b", Name: "s"}}].Connections != 4 {
		t.Error(got)
	}
}

package compiler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// spread returns a Service with 100 ports at external IPs of its own.
func spread(namespace string, n, addrs int, created int64) object {
	return newService("x", manyPorts(100, false), clusterIP(fmt.Sprintf("10.96.%d.%d", n/250, 1+n%250)), func(s *snapshot.Service) {
		s.Name = ir.Name{Namespace: namespace, Name: fmt.Sprintf("s%02d", n)}
		s.Object, s.Created = "Service "+s.Name.String(), time.Unix(created, 0)
		s.ExternalIPs = addresses(fmt.Sprintf("20.%d", n), addrs)
	})
}

// externals returns the number of Services with external frontends, and the Services without by findings.
func externals(c *Compiler) (served int, left string) {
	for _, s := range c.Programs().IPv4.Services {
		if slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Kind.External() }) {
			served++
		}
	}
	var all []string
	for _, d := range c.Diagnostics() {
		if d.Code == diag.TooManyFrontends {
			all = append(all, strings.TrimPrefix(d.Object, "Service ")+": "+d.Msg[strings.Index(d.Msg, "each: "):])
		}
	}
	return served, strings.Join(all, "\n")
}

// The products of all Services of a namespace, and of a node, are limited. The youngest Services
// keep their ClusterIPs only, and are named.
func TestBudgets(t *testing.T) {
	const over = "each: older Services use the limit of "
	snap := snapshotOf()
	for n := range 6 { // s00 is the youngest
		spread("a", n, 98, int64(100-n))(snap)
	}
	spread("b", 6, 98, 200)(snap)
	c := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
	check := func(step string, served int, left string) {
		t.Helper()
		again := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
		for _, c := range []*Compiler{c, again} {
			n, names := externals(c)
			if d := cmp.Diff(left, names); d != "" || n != served {
				t.Errorf("%s: %d Services are served, want %d; left out (-want +got):\n%s", step, n, served, d)
			}
		}
	}
	check("six in a namespace", 6, "a/s00: "+over+"namespace a, 50000 frontends at external addresses in IPv4")
	snap.DeleteService(ir.Name{Namespace: "a", Name: "s03"})
	c.Update([]ir.Name{{Namespace: "a", Name: "s03"}})
	check("an older one is deleted", 6, "")
	for n := range 16 {
		o := spread(fmt.Sprintf("c%d", n/4), 10+n, 98, int64(300+n))
		o(snap)
		c.Update([]ir.Name{{Namespace: fmt.Sprintf("c%d", n/4), Name: fmt.Sprintf("s%02d", 10+n)}})
	}
	check("others in the cluster", 20, "c3/s24: "+over+"a node, 200000 frontends at external addresses in IPv4\nc3/s25: "+over+"a node, 200000 frontends at external addresses in IPv4")
}

// Updates of Services around the limits lead to the same Programs and findings as a compilation.
func TestBudgetHistories(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 9))
	snap := snapshotOf()
	c := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
	left := 0
	for step := range 15 {
		var dirty []ir.Name
		for range 3 {
			n := random.IntN(9)
			name := ir.Name{Namespace: "a", Name: fmt.Sprintf("s%02d", n)}
			if dirty = append(dirty, name); random.IntN(4) == 0 {
				snap.DeleteService(name)
			} else {
				spread("a", n, random.IntN(98), int64(random.IntN(5)))(snap)
			}
		}
		slices.SortFunc(dirty, ir.Name.Compare)
		before := c.Programs()
		changes, _ := c.Update(slices.Compact(dirty))
		again := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
		if d := cmp.Diff(again.Diagnostics(), c.Diagnostics()); d != "" {
			t.Fatalf("step %d: findings (-all +updates):\n%s", step, d)
		}
		for f, p := range c.Programs().All() {
			if len(ir.Diff(again.Programs().Of(f), p)) > 0 {
				t.Fatalf("step %d: another Program", step)
			}
			if want := ir.Diff(before.Of(f), p); len(want) != len(changes.Of(f)) {
				t.Fatalf("step %d: %d changes, want %d", step, len(changes.Of(f)), len(want))
			}
		}
		_, names := externals(c)
		left += len(names)
	}
	if left == 0 {
		t.Error("no Service was left out")
	}
}

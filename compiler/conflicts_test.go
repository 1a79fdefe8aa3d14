package compiler

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Adding a contested claim costs no more than adding an uncontested one. Adding
// or removing an owner touches each Service whose share changes once.
func TestManyClaimsOfOneAddress(t *testing.T) {
	const n = 1000
	snap := snapshotOf()
	var names []ir.Name
	for i := range n {
		name := fmt.Sprintf("s%04d", n-i) // each precedes the existing ones
		newService(name, externalIPs("198.18.0.1"), clusterIP(fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)))(snap)
		names = append(names, ns(name))
	}
	c := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
	all := c.claims.Of(ir.IPv4)
	cost := func(what string, limit int, do func()) {
		t.Helper()
		all.compared = 0
		if do(); all.compared > limit {
			t.Errorf("%s: %d comparisons, want at most %d", what, all.compared, limit)
		}
	}
	all.compared = 0
	cost("a new compiler", 2*n, func() {
		c = New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
		all = c.claims.Of(ir.IPv4)
	})
	cost("what changes nothing", 0, func() { c.Update(names) })
	cost("the loss of the owner", n, func() { snap.DeleteService(names[n-1]); c.Update(names[n-1:]) })
	cost("one that is late", 2, func() {
		newService("z", externalIPs("198.18.0.1"), clusterIP("10.97.0.1"))(snap)
		c.Update([]ir.Name{ns("z")})
	})
	cost("the loss of half", n, func() {
		for _, name := range names[n/2:] {
			snap.DeleteService(name)
		}
		c.Update(names[n/2:])
	})
	if all.compared == 0 {
		t.Error("nothing was compared: the count counts nothing")
	}
	touched := 0
	for _, name := range names[:n/2] {
		e := c.order.entry(name)
		all.remove(e, e.compiled.Of(ir.IPv4))
	}
	all.settle(func(*entry) { touched++ })
	if touched != 1 {
		t.Errorf("the last claim was touched %d times, want 1", touched)
	}
}

// The finding of a hidden node port follows every change of the Service and of
// the external IP that hides it.
func TestHiddenNodePortFollows(t *testing.T) {
	hiding := func(name string, created int, addr string) object {
		return newService(name, clusterIP("10.96.0.1"), externalIPs(addr), on(created), ports(snapshot.ServicePort{Port: 30080}))
	}
	snap := snapshotOf(newService("b", clusterIP("10.96.0.2"), nodePort(30080), on(1)))
	c := New(newConfig(ir.ModeIPTables), snap, Facts{NodeName: "node1"})
	for _, step := range []struct {
		name  string
		do    object
		dirty string
		want  string
	}{
		{"it comes", hiding("a", 1, "192.0.2.11"), "a", "a"},
		{"a weaker claim", hiding("z", 2, "192.0.2.11"), "z", "a"},
		{"the stronger one goes", func(s *snapshot.Snapshot) { s.DeleteService(ns("a")) }, "a", "z"},
		{"it moves away", hiding("z", 2, "198.18.0.1"), "z", ""},
		{"it moves back", hiding("z", 2, "192.0.2.11"), "z", "z"},
		{"the last one goes", func(s *snapshot.Snapshot) { s.DeleteService(ns("z")) }, "z", ""},
	} {
		step.do(snap)
		c.Update([]ir.Name{ns(step.dirty)})
		want := ""
		if step.want != "" {
			want = "warning: Service ns/b: spec.ports[0].nodePort: 30080/tcp at the node's address 192.0.2.11 is Service ns/" + step.want +
				"'s ExternalIP, which receives the packets to the node port there while it has endpoints"
		}
		got := ""
		for _, d := range c.Diagnostics() {
			if d.Object == "Service ns/b" {
				got += d.Severity.String() + ": " + d.String()
			}
		}
		if got != want {
			t.Errorf("%s:\n got %q\nwant %q", step.name, got, want)
		}
	}
}

// An author of files chooses times, addresses and status. So only a ClusterIP in a ServiceCIDR wins a Match:
// otherwise no Service has it, and findings name both, after each change.
func TestContestsInFiles(t *testing.T) {
	snap := snapshotOf(newService("victim", clusterIP("10.96.0.1"), externalIPs("198.18.0.1"), nodePort(30080), on(2)),
		func(s *snapshot.Snapshot) {
			s.SetServiceCIDR(&snapshot.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
		})
	c := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1", Files: true})
	for _, step := range []struct {
		name, dirty string
		do          object
		want        map[string]string // owners and findings
	}{
		{"an older claim", "evil", newService("evil", clusterIP("10.96.0.2"), externalIPs("198.18.0.1"), on(1)),
			map[string]string{"198.18.0.1:80/tcp": "", "node:30080/tcp": "victim", "victim": "evil", "evil": "victim"}},
		{"the status of a load balancer", "evil", newService("evil", clusterIP("10.96.0.2"), loadBalancer("198.18.0.1"), nodePort(30080), on(1)),
			map[string]string{"198.18.0.1:80/tcp": "", "node:30080/tcp": "", "victim": "evil", "evil": "victim"}},
		{"a ClusterIP of no ServiceCIDR", "evil", newService("evil", clusterIP("198.18.0.1")),
			map[string]string{"198.18.0.1:80/tcp": "", "victim": "evil", "evil": "victim"}},
		{"one of a ServiceCIDR stays", "evil", newService("evil", clusterIP("10.96.0.2"), externalIPs("10.96.0.1"), on(1)),
			map[string]string{"10.96.0.1:80/tcp": "victim", "198.18.0.1:80/tcp": "victim", "evil": "victim"}},
		{"two others", "third", newService("third", clusterIP("10.96.0.3"), externalIPs("198.18.0.1", "10.96.0.1")),
			map[string]string{"10.96.0.1:80/tcp": "victim", "198.18.0.1:80/tcp": "", "victim": "third", "evil": "victim", "third": "victim"}},
		{"they are gone", "third", func(s *snapshot.Snapshot) { s.DeleteService(ns("third")) },
			map[string]string{"10.96.0.1:80/tcp": "victim", "198.18.0.1:80/tcp": "victim", "evil": "victim"}},
	} {
		step.do(snap)
		c.Update([]ir.Name{ns(step.dirty)})
		if d := cmp.Diff(New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1", Files: true}).Diagnostics(), c.Diagnostics()); d != "" {
			t.Errorf("%s: findings differ from those of a new compiler (-new +updated):\n%s", step.name, d)
		}
		owners := map[string]string{}
		for _, s := range c.Programs().IPv4.Services {
			for i := range s.Frontends {
				owners[s.Frontends[i].Match.String()] = s.Name.Name
			}
		}
		for what, want := range step.want {
			if got, is := owners[what]; is || strings.Contains(what, ":") {
				if got != want {
					t.Errorf("%s: %s belongs to %q, want %q", step.name, what, got, want)
				}
				continue
			}
			if !slices.ContainsFunc(c.Diagnostics(), func(d diag.Diagnostic) bool {
				return d.Object == "Service ns/"+what && strings.Contains(d.Msg, "Service ns/"+want)
			}) {
				t.Errorf("%s: no finding about %s names %s: %v", step.name, what, want, c.Diagnostics())
			}
		}
	}
}

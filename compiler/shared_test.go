package compiler

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// In mode ipvs, two Services with one endpoint are named, whichever of them comes,
// goes, or changes; other modes tell their connections apart.
func TestSharedEndpointsAreNamed(t *testing.T) {
	const named = "warning: Service ns/a: spec.selector: has endpoint 10.1.0.1:8080/TCP, as Service ns/b has: in mode ipvs the kernel does not tell apart connections " +
		"from one port of a client to both, and one of them fails (kubernetes#107249)"
	for _, mode := range []ir.Mode{ir.ModeIPVS, ir.ModeNFTables} {
		snap := snapshotOf(newService("a", clusterIP("10.96.0.1")), slice("a-1", "10.1.0.1", "10.1.0.2"))
		c := New(newConfig(mode), snap, Facts{NodeName: "node1"})
		for _, step := range []struct {
			name  string
			do    []object
			dirty string
			want  string
		}{
			{"alone", nil, "a", ""},
			{"another comes", []object{newService("b", clusterIP("10.96.0.2")), slice("b-1", "10.1.0.1", "10.1.0.3")}, "b", named},
			{"its endpoint goes", []object{slice("b-1", "10.1.0.3")}, "b", ""},
			{"it comes back with two", []object{slice("b-1", "10.1.0.1", "10.1.0.2")}, "b", strings.Replace(named, "TCP", "TCP and 1 more", 1)},
			{"the other one goes", []object{func(s *snapshot.Snapshot) { s.DeleteService(ns("b")) }}, "b", ""},
		} {
			for _, do := range step.do {
				do(snap)
			}
			c.Update([]ir.Name{ns(step.dirty)})
			want := step.want
			if mode != ir.ModeIPVS {
				want = ""
			}
			got := ""
			for _, d := range c.Diagnostics() {
				if strings.Contains(d.Msg, "107249") {
					got += d.Severity.String() + ": " + d.String()
				}
			}
			if !strings.EqualFold(got, want) {
				t.Errorf("%s, %s:\n got %q\nwant %q", mode, step.name, got, want)
			}
			// All at once says the same.
			if all := New(newConfig(mode), snap, Facts{NodeName: "node1"}).Diagnostics(); len(all) != len(c.Diagnostics()) {
				t.Errorf("%s, %s: all at once: %v", mode, step.name, all)
			}
		}
	}
}

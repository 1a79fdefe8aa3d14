package compiler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// In mode ipvs, each Service that shares an endpoint has one finding, after every
// change of these Services. Other modes distinguish their connections.
func TestSharedEndpointsAreNamed(t *testing.T) {
	const why = ": in mode ipvs the kernel does not distinguish connections from one client port to both, and one of them fails (kubernetes#107249)\n"
	shares := func(a, b, what string) string {
		return fmt.Sprintf("warning: Service ns/%s: spec.selector: shares "+what+" with Service ns/%s", a, b) + why
	}
	one, two := "endpoint 10.1.0.1:8080/tcp", "2 endpoints with other Services, such as 10.1.0.1:8080/tcp"
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
			{"another comes", []object{newService("b", clusterIP("10.96.0.2")), slice("b-1", "10.1.0.1", "10.1.0.3")}, "b", shares("a", "b", one) + shares("b", "a", one)},
			{"its endpoint goes", []object{slice("b-1", "10.1.0.3")}, "b", ""},
			{"it comes back with two", []object{slice("b-1", "10.1.0.1", "10.1.0.2")}, "b", shares("a", "b", two) + shares("b", "a", two)},
			{"a third one comes", []object{newService("c", clusterIP("10.96.0.3")), slice("c-1", "10.1.0.2", "10.1.0.1")}, "c",
				shares("a", "b", two) + shares("b", "c", two) + shares("c", "a", two)},
			{"the second one goes", []object{func(s *snapshot.Snapshot) { s.DeleteService(ns("b")) }}, "b",
				shares("a", "c", two) + shares("c", "a", two)},
			{"the third one goes", []object{func(s *snapshot.Snapshot) { s.DeleteService(ns("c")) }}, "c", ""},
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
					got += d.Severity.String() + ": " + d.String() + "\n"
				}
			}
			if got != want {
				t.Errorf("%s, %s:\n got %q\nwant %q", mode, step.name, got, want)
			}
			if diff := differ(New(newConfig(mode), snap, Facts{NodeName: "node1"}).Diagnostics(), c.Diagnostics()); diff != "" {
				t.Errorf("%s, %s (-compiled +updated):\n%s", mode, step.name, diff)
			}
		}
	}
}

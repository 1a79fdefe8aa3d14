package compiler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const largestTable, fourthOfIt = "maglev-65537", "maglev-16381"

// tabled returns a dual-stack Service that requests tables for v4 or v6 ports at an
// external IP of its own in each family. day is its creation date in January 2026; 0 means unknown.
func tabled(name, balance string, day, v4, v6 int, more ...change) object {
	n := int(name[0])
	addrs := []change{clusterIP(fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:10:96::%x", n)), func(s *snapshot.Service) {
		if s.Balance = balance; day > 0 {
			s.Created = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		}
		s.ExternalIPs = addresses(fmt.Sprintf("198.%d", n), min(v4, 1))
		if v6 > 0 {
			s.ExternalIPs = append(s.ExternalIPs, fmt.Sprintf("2001:db8:%x::1", n))
		}
		for i := 1; i < max(v4, v6); i++ {
			s.Ports = append(s.Ports, snapshot.ServicePort{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: int32(1000 + i)})
		}
	}}
	return newService(name, append(addrs, more...)...)
}

// haveTables returns the names of the Services with tables, and the findings
// about annotations without effect.
func haveTables(t *testing.T, c *Compiler) (names, said []string) {
	t.Helper()
	of := map[string]bool{}
	programs := c.Programs()
	for _, p := range programs.All() {
		for _, s := range p.Services {
			if slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Maglev != nil }) {
				of[s.Name.Name] = true
			}
		}
	}
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, d := range c.Diagnostics() {
		if d.Code == diag.BalanceNoEffect {
			said = append(said, strings.TrimPrefix(d.Object, "Service ns/")+": "+strings.TrimPrefix(d.Msg, "has no effect: "))
		}
	}
	return names, said
}

func endpointsOf(names ...string) (objects []object) {
	for _, name := range names {
		objects = append(objects, slice(name+"-1", "10.1.0.1"),
			editSlice(name+"-2", func(e *snapshot.EndpointSlice) { e.AddressType = "IPv6" }, "fd00:10:1::1"))
	}
	return objects
}

// The tables of all Services share the slots of a node. Older Services are served
// first, in whatever order they are added. A Service that does not fit does not
// exclude a younger one that fits.
func TestSlotsOfANode(t *testing.T) {
	const (
		beside = "b: its tables, 1 of 65537 slots, do not fit after those of older Services: a node has 262144 slots in a family; a smaller table may fit"
		alone  = "a: its tables, 4 of 65537 slots, are more than the limit of a node, 262144 slots in a family; a smaller table may fit"
	)
	for _, tc := range []struct {
		name     string
		services []object
		want     []string // with tables
		said     []string
	}{
		{"in files, whose times count for nothing", []object{tabled("b", largestTable, 1, 1, 0), tabled("a", largestTable, 2, 3, 0)}, []string{"a"}, []string{beside}},
		{"all that fit", []object{tabled("a", largestTable, 1, 3, 0), tabled("b", fourthOfIt, 2, 4, 0)}, []string{"a", "b"}, nil},
		{"frontends with the default", []object{tabled("a", "maglev", 1, 1044, 0)}, []string{"a"}, nil},
		{"one too many", []object{tabled("a", "maglev", 1, 1045, 0)}, nil,
			[]string{"a: its tables, 1045 of 251 slots, are more than the limit of a node, 262144 slots in a family; fewer frontends may fit"}},
		{"node ports have tables", []object{tabled("a", "maglev", 1, 1044, 0, nodePort(30080))}, nil,
			[]string{"a: its tables, 1045 of 251 slots, are more than the limit of a node, 262144 slots in a family; fewer frontends may fit"}},
		{"frontends share a table", []object{tabled("a", largestTable, 1, 3, 0, nodePort(30080), func(s *snapshot.Service) { s.ExternalIPs = addresses("198.18", 99) })}, []string{"a"}, nil},
		{"ports do not", []object{tabled("a", largestTable, 1, 4, 0)}, nil, []string{alone}},
		{"ClusterIPs have none", []object{tabled("a", largestTable, 1, 3, 3)}, []string{"a"}, nil},
		{"the older one", []object{tabled("b", largestTable, 2, 1, 0), tabled("c", largestTable, 1, 3, 0)}, []string{"c"}, []string{beside}},
		{"of one age by name", []object{tabled("b", largestTable, 1, 1, 0), tabled("a", largestTable, 1, 3, 0)}, []string{"a"}, []string{beside}},
		{"who is not there yet is the youngest", []object{tabled("b", largestTable, 0, 1, 0), tabled("c", largestTable, 31, 3, 0)}, []string{"c"}, []string{beside}},
		{"a younger one that needs less", []object{tabled("a", largestTable, 1, 3, 0), tabled("b", largestTable, 2, 1, 0), tabled("c", fourthOfIt, 3, 4, 0)},
			[]string{"a", "c"}, []string{beside}},
		{"who can have no tables takes no slots", []object{tabled("a", largestTable, 1, 4, 0), tabled("b", largestTable, 2, 3, 0, affinity(60)),
			tabled("c", largestTable, 3, 3, 0, func(s *snapshot.Service) { s.ExternalLocal = true }), tabled("d", largestTable, 4, 3, 0)},
			[]string{"d"}, []string{alone, "b: sessionAffinity is ClientIP", "c: externalTrafficPolicy is Local"}},
		{"families do not share", []object{tabled("a", largestTable, 1, 3, 0), tabled("b", largestTable, 2, 0, 3)}, []string{"a", "b"}, nil},
		{"in all families or in none", []object{tabled("a", largestTable, 1, 3, 0), tabled("b", largestTable, 2, 1, 1), tabled("c", largestTable, 3, 0, 3)},
			[]string{"a", "c"}, []string{beside}},
		{"or none for the other family", []object{tabled("a", largestTable, 1, 0, 3), tabled("b", largestTable, 2, 1, 1), tabled("c", largestTable, 3, 3, 0)},
			[]string{"a", "c"}, []string{beside}},
	} {
		objects := append(endpointsOf("a", "b", "c", "d"), tc.services...)
		for _, order := range []string{"as reported", "backwards"} {
			c := New(newConfig(ir.ModeNFTables), snapshotOf(objects...), Facts{NodeName: "node1", Files: strings.HasPrefix(tc.name, "in files")})
			names, said := haveTables(t, c)
			if d := cmp.Diff(tc.want, names) + cmp.Diff(tc.said, said); d != "" {
				t.Errorf("%s, %s (-want +got):\n%s", tc.name, order, d)
			}
			slices.Reverse(objects)
		}
	}
}

// A Service that is deleted or needs less makes room for others. A new one
// displaces only younger ones. Endpoints do not matter, so pods never change
// which Services have tables.
func TestSlotsChangeHands(t *testing.T) {
	snap := snapshotOf(append(endpointsOf("a", "b", "c"), tabled("a", largestTable, 1, 3, 0), tabled("b", largestTable, 2, 2, 0), tabled("c", fourthOfIt, 3, 8, 0), tabled("d", "", 4, 1, 0))...)
	c := New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"})
	for _, step := range []struct {
		name    string
		do      object
		dirty   string
		want    string
		changed string // in IPv4
		said    string // Services with findings from Update
	}{
		{"at first", func(*snapshot.Snapshot) {}, "d", "a", "", "d"},
		{"the oldest has no endpoints", slice("a-1"), "a", "", "a", "a"},
		{"and has some again", slice("a-1", "10.1.0.1"), "a", "a", "a", "a"},
		{"the oldest needs less", tabled("a", fourthOfIt, 1, 3, 0), "a", "a b", "a b", "a b"},
		{"the second goes", func(s *snapshot.Snapshot) { s.DeleteService(ns("b")) }, "b", "a c", "b c", "b c"},
		{"and is younger when it comes back", tabled("b", largestTable, 5, 2, 0), "b", "a c", "b", "b"},
		{"the third has no annotation", tabled("c", "", 3, 8, 0), "c", "a b", "b c", "b c"},
		{"and has one again", tabled("c", fourthOfIt, 3, 8, 0), "c", "a c", "b c", "b c"},
		{"it is deleted and made again", tabled("c", fourthOfIt, 6, 8, 0), "c", "a b", "b c", "b c"},
		{"so is the second", tabled("b", largestTable, 7, 2, 0), "b", "a c", "b c", "b c"},
		{"the oldest has other ports", tabled("a", fourthOfIt, 1, 3, 0, func(s *snapshot.Service) { s.Ports[0].Port = 81 }), "a", "a c", "a", "a"},
		{"one without annotation goes", func(s *snapshot.Snapshot) { s.DeleteService(ns("d")) }, "d", "a c", "d", "d"},
	} {
		step.do(snap)
		changes, findings := c.Update([]ir.Name{ns(step.dirty)})
		var changed, said []string
		for _, ch := range changes.IPv4 {
			changed = append(changed, ch.Name.Name)
		}
		for name := range findings {
			said = append(said, name.Name)
		}
		slices.Sort(said)
		names, effect := haveTables(t, c)
		for i, got := range [][]string{names, changed, said} {
			if want := []string{step.want, step.changed, step.said}[i]; strings.Join(got, " ") != want {
				t.Errorf("%s: got %q of have tables, changed, reported of: want %q", step.name, got, want)
			}
		}
		all, allSaid := haveTables(t, New(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node1"}))
		if d := cmp.Diff(all, names) + cmp.Diff(allSaid, effect); d != "" {
			t.Errorf("%s (-compiled +updated):\n%s", step.name, d)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		snap.DeleteService(ns(name))
		c.Update([]ir.Name{ns(name)})
	}
	if len(c.slots.wanted) > 0 {
		t.Errorf("without Services %d want slots", len(c.slots.wanted))
	}
}

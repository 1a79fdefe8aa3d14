package diff

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/sim"
)

// inputOf returns a world as an input, as if read from files.
func inputOf(w *reviewtest.World) *review.Input {
	return &review.Input{Resolved: &config.Resolved{Config: w.CompleteConfig()}, Snapshot: w.Snapshot(nil), Facts: w.Facts}
}

// Equal sides have no differences: a side and itself, or a side with another order of objects and
// endpoints and other names of slices.
func TestDiffOfTheSame(t *testing.T) {
	start := applytest.Seed(t)
	for n := range uint64(200) {
		r := reviewtest.New(start, n)
		w := r.World(ir.Modes()[n%uint64(len(ir.Modes()))])
		w.Slices = withoutDoubles(w.Slices)
		shuffled := *w
		shuffled.Slices = nil
		for i, s := range w.Slices {
			c := *s
			c.Name.Name = fmt.Sprintf("renamed-%d", r.IntN(1000)*100+i)
			c.Object = "EndpointSlice " + c.Name.String()
			c.Endpoints = slices.Clone(s.Endpoints)
			r.Shuffle(len(c.Endpoints), func(i, j int) { c.Endpoints[i], c.Endpoints[j] = c.Endpoints[j], c.Endpoints[i] })
			shuffled.Slices = append(shuffled.Slices, &c)
		}
		r.Shuffle(len(shuffled.Slices), func(i, j int) {
			shuffled.Slices[i], shuffled.Slices[j] = shuffled.Slices[j], shuffled.Slices[i]
		})
		for name, other := range map[string]*reviewtest.World{"itself": w, "shuffled": &shuffled} {
			d, err := Compare(t.Context(), inputOf(w), inputOf(other), Nodes{All: n%2 == 0}, All, flow.CompareOf)
			if err != nil {
				t.Fatal(err)
			}
			if !d.Empty() {
				var text bytes.Buffer
				d.WriteText(&text, true)
				t.Fatalf("-seed=%d, world %d against %s:\n%s", start, n, name, &text)
			}
		}
	}
}

// withoutDoubles removes repeated endpoints of a Service, because the first of them is used and the
// order changes.
func withoutDoubles(all []*snapshot.EndpointSlice) (out []*snapshot.EndpointSlice) {
	type key struct {
		service ir.Name
		addr    netip.Addr
	}
	known := map[key]bool{}
	for _, s := range all {
		c := *s
		c.Endpoints = nil
		for _, e := range s.Endpoints {
			if k := (key{s.Service, e.Addr}); !known[k] {
				known[k] = true
				c.Endpoints = append(c.Endpoints, e)
			}
		}
		out = append(out, &c)
	}
	return out
}

// A diff contains all differences, and packets that it does not name have the same fate on both
// sides.
func TestDiffNamesAll(t *testing.T) {
	start := applytest.Seed(t)
	named, unnamed, flows := 0, 0, 0
	for n := range uint64(*reviewtest.Packets / 100) {
		r := reviewtest.New(start, n)
		w := r.World(ir.Modes()[n%uint64(len(ir.Modes()))])
		o := r.Other(w)
		before, after := w.Compile(t), o.Compile(t)
		where := flow.Network{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}
		if r.Chance(2) {
			where.Here = reviewtest.NodeObject(1).PodCIDRs
		}
		for f, a := range ir.Present(before) {
			b := after.Of(f)
			if b == nil {
				continue
			}
			services, _, err := flow.Compare(t.Context(), where, a, b)
			if err != nil {
				t.Fatal(err)
			}
			ea, eb := sim.NewEvaluator(a), sim.NewEvaluator(b)
			var all []*flow.Flow
			for i := range services {
				for j := range services[i].Flows {
					all = append(all, &services[i].Flows[j])
				}
			}
			for _, one := range all {
				flows++
				if got, want := ea.Outcome(one.Example.Packet, nil), eb.Outcome(one.Example.Packet, nil); got.Equal(want) {
					t.Fatalf("-seed=%d, world %d: %v is named, and is %s on both sides", start, n, one.Example.Packet, got)
				}
				if !(&reviewtest.Scope{Where: where, A: a, B: b}).Holds(one, one.Example.Packet) {
					t.Fatalf("-seed=%d, world %d: %v is not one of the flow that it stands for: %s from %s %+v", start, n, one.Example.Packet,
						flow.DestinationsText(one.To), flow.ClientsText(one.From), one.From)
				}
			}
			packets := r.PacketsOf(a, b, all)
			for _, pkt := range packets {
				was, is := ea.Outcome(pkt, nil), eb.Outcome(pkt, nil)
				at := slices.IndexFunc(all, func(one *flow.Flow) bool { return (&reviewtest.Scope{Where: where, A: a, B: b}).Holds(one, pkt) })
				switch {
				case at >= 0 && was.Equal(is):
					t.Fatalf("-seed=%d, world %d: %+v is %s on both sides, and is named: %s from %s", start, n, pkt, was,
						flow.DestinationsText(all[at].To), flow.ClientsText(all[at].From))
				case at < 0 && !was.Equal(is):
					t.Fatalf("-seed=%d, world %d: %+v is %s and then %s, and is not named", start, n, pkt, was, is)
				case at >= 0 && !fitting(all[at].Change.Effect, len(was.Destinations) > 0, len(is.Destinations) > 0):
					t.Fatalf("-seed=%d, world %d: %+v is %s and then %s, with effect %s", start, n, pkt, was, is, all[at].Change.Effect)
				case at >= 0:
					named++
				default:
					unnamed++
				}
			}
		}
	}
	t.Logf("%d flows; of packets %d are in one, and %d in none", flows, named, unnamed)
	if named == 0 || unnamed == 0 {
		t.Error("the test shows nothing")
	}
}

// fitting reports whether packets that were served and are served, or not, can have an effect.
func fitting(e flow.Effect, was, is bool) bool {
	switch {
	case !was && is:
		return e == flow.Opens
	case was && !is:
		return e == flow.Lost
	case !was:
		return e == flow.Opens || e == flow.Lost || e == flow.Other
	}
	return e != flow.Other
}

// The same change in many Services is reported once, with each of them named.
func TestDiffAlike(t *testing.T) {
	const services = 200
	was, is := reviewtest.MixedCluster(t, services), reviewtest.MixedCluster(t, services)
	for _, svc := range is.Services() {
		for _, s := range is.Slices(svc.Name) {
			c := *s
			c.Endpoints = c.Endpoints[1:]
			is.SetSlice(&c)
		}
	}
	a, b := reviewtest.MixedProgram(t, ir.ModeNFTables, was), reviewtest.MixedProgram(t, ir.ModeNFTables, is)
	found, _, err := flow.Compare(t.Context(), flow.Network{}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	var merged flow.Merger
	merged.Add("node1", found)
	entries := flow.Entries(merged.Services())
	if len(found) < services*9/10 || len(entries) > 12 {
		t.Errorf("%d Services change, in %d entries", len(found), len(entries))
	}
	named := map[ir.Name]bool{}
	flows := 0
	for _, e := range entries {
		flows += len(e.Flows) * len(e.Names)
		for _, n := range e.Names {
			named[n] = true
		}
	}
	all := 0
	for _, s := range found {
		all += len(s.Flows)
	}
	if len(named) != len(found) || flows < all {
		t.Errorf("%d of %d Services and %d of %d flows are in an entry", len(named), len(found), flows, all)
	}
}

// A comment for a pull request has room in one of GitHub, whatever changes, and counts what it leaves out.
func TestDiffMarkdownIsBounded(t *testing.T) {
	const most = 65536
	long := strings.Repeat("x", 200)
	notes := func(n int) (all []flow.Note) {
		for i := range n {
			all = append(all, flow.Note{What: fmt.Sprintf("health check %d", i), Before: long, After: "[a](http://example.com) | @all"})
		}
		return all
	}
	services := func(n, each int) (all []flow.Service) {
		for i := range n {
			s := flow.Service{Name: ir.Name{Namespace: "ns", Name: fmt.Sprintf("s%d", i)}, Notes: notes(each)}
			for j := range s.Notes {
				s.Notes[j].What += fmt.Sprintf(" of s%d", i)
			}
			all = append(all, s)
		}
		return all
	}
	var facts []nodeFact
	for i := range 5000 {
		facts = append(facts, nodeFact{What: fmt.Sprintf("address %d", i), Before: "a", After: "b", Nodes: []string{"node1"}})
	}
	for _, tt := range []struct {
		name string
		d    Diff
		want []string
		all  bool // nothing is omitted
	}{
		{"few", Diff{Services: services(2, 3)}, []string{`[a]\(http:&#8203;//example.com) \| @&#8203;all`, "ns/s1", "health check 2 of s1"}, true},
		{"one Service with many lines", Diff{Services: services(1, 1000)}, []string{"health check 0 of s0", "\n1 more entries, 1 of them partly above: `proxyc diff -o text` lists them.\n"}, false},
		{"many Services", Diff{Services: services(1000, 10)}, []string{"more entries", "health check 9 of s0"}, false},
		{"facts of nodes", Diff{Facts: facts, Services: services(50, 1)}, []string{"more settings", "health check 0 of s0", "\n10 more entries: "}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var text bytes.Buffer
			if err := tt.d.WriteMarkdown(&text); err != nil {
				t.Fatal(err)
			}
			if text.Len() > most {
				t.Errorf("%d bytes, want at most %d", text.Len(), most)
			}
			for _, want := range tt.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("%q is not in\n%.2000s", want, &text)
				}
			}
			if all := !strings.Contains(text.String(), " more"); all != tt.all {
				t.Errorf("is all there: %t, want %t", all, tt.all)
			}
		})
	}
}

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// jobOf returns the job that a world on disk would be.
func (w *world) job() *job {
	return &job{Resolved: &config.Resolved{Config: w.completeConfig()}, snap: w.snapshot(nil), facts: w.facts}
}

// Two sides that say the same differ in nothing: the same one, and one with its objects
// and endpoints in another order and its slices by other names.
func TestDiffOfTheSame(t *testing.T) {
	start := applytest.Seed(t)
	for n := range uint64(200) {
		r := newRandom(start, n)
		w := r.world(ir.Modes()[n%uint64(len(ir.Modes()))])
		w.slices = withoutDoubles(w.slices)
		shuffled := *w
		shuffled.slices = nil
		for i, s := range w.slices {
			c := *s
			c.Name.Name = fmt.Sprintf("renamed-%d", r.IntN(1000)*100+i)
			c.Object = "EndpointSlice " + c.Name.String()
			c.Endpoints = slices.Clone(s.Endpoints)
			r.Shuffle(len(c.Endpoints), func(i, j int) { c.Endpoints[i], c.Endpoints[j] = c.Endpoints[j], c.Endpoints[i] })
			shuffled.slices = append(shuffled.slices, &c)
		}
		r.Shuffle(len(shuffled.slices), func(i, j int) {
			shuffled.slices[i], shuffled.slices[j] = shuffled.slices[j], shuffled.slices[i]
		})
		for name, other := range map[string]*world{"itself": w, "shuffled": &shuffled} {
			d, err := compareNodes(t.Context(), w.job(), other.job(), nodeChoice{AllNodes: n%2 == 0}, flow.Compare)
			if err != nil {
				t.Fatal(err)
			}
			if !d.empty() {
				var text bytes.Buffer
				d.writeText(&text, true)
				t.Fatalf("-seed=%d, world %d against %s:\n%s", start, n, name, &text)
			}
		}
	}
}

// withoutDoubles leaves out endpoints that a Service has already: which of them counts
// depends on the order.
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

// other returns a world that differs from one in something.
func (r *random) other(w *world) *world {
	c := *w
	c.services, c.slices = slices.Clone(w.services), slices.Clone(w.slices)
	switch i := r.IntN(len(c.services)); r.IntN(6) {
	case 0:
		c.config = r.config(w.mode)
	case 1:
		c.mode = pick(r, ir.Modes())
		c.config = r.config(c.mode)
	case 2:
		c.facts = r.facts()
	case 3:
		c.services = slices.Delete(c.services, i, i+1)
	case 4:
		c.services[i] = r.service(i)
	}
	for i, s := range c.slices {
		if r.chance(3) {
			c.slices[i] = r.slice(serviceOf(w, s), 0)
			c.slices[i].Name, c.slices[i].AddressType = s.Name, s.AddressType
			for j := range c.slices[i].Endpoints {
				c.slices[i].Endpoints[j] = r.endpoint(s.AddressType, false)
			}
		}
	}
	return &c
}

func serviceOf(w *world, slice *snapshot.EndpointSlice) *snapshot.Service {
	i := slices.IndexFunc(w.services, func(s *snapshot.Service) bool { return s.Name == slice.Service })
	return w.services[i]
}

// What diff names differs, and what it does not name has the same fate on both sides.
func TestDiffNamesAll(t *testing.T) {
	start := applytest.Seed(t)
	named, unnamed, flows := 0, 0, 0
	for n := range uint64(*packets / 100) {
		r := newRandom(start, n)
		w := r.world(ir.Modes()[n%uint64(len(ir.Modes()))])
		o := r.other(w)
		before, after := w.compile(t), o.compile(t)
		where := flow.Network{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}
		if r.chance(2) {
			where.Here = randomWorldNode(1).PodCIDRs
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
				if !(&scope{where, a, b}).holds(one, one.Example.Packet) {
					t.Fatalf("-seed=%d, world %d: %v is not one of the flow that it stands for: %s from %s %+v", start, n, one.Example.Packet,
						flow.DestinationsText(one.To), flow.ClientsText(one.From), one.From)
				}
			}
			packets := r.packetsOf(a, b, all)
			for _, pkt := range packets {
				was, is := ea.Outcome(pkt, nil), eb.Outcome(pkt, nil)
				at := slices.IndexFunc(all, func(one *flow.Flow) bool { return (&scope{where, a, b}).holds(one, pkt) })
				switch {
				case at >= 0 && was.Equal(is):
					t.Fatalf("-seed=%d, world %d: %+v is %s on both sides, and is named: %s from %s", start, n, pkt, was,
						flow.DestinationsText(all[at].To), flow.ClientsText(all[at].From))
				case at < 0 && !was.Equal(is):
					t.Fatalf("-seed=%d, world %d: %+v is %s and then %s, and is not named", start, n, pkt, was, is)
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

// packetsOf returns packets that may exist on the node, to what may differ.
func (r *random) packetsOf(a, b *ir.Program, flows []*flow.Flow) (out []sim.Packet) {
	node := flow.NodeOf(a, b)
	exists := func(pkt sim.Packet) bool {
		dst := pkt.Dst
		if pkt.FromNode() {
			if dst.IsLoopback() || !slices.Contains(node.Addrs, dst) && node.Carries != nil && node.Carries(dst) {
				return pkt.Src == dst
			}
			return slices.Contains(node.Addrs, pkt.Src)
		}
		return !dst.IsLoopback() && !slices.Contains(node.Addrs, pkt.Src) && !pkt.Src.IsLoopback() && (node.Carries == nil || !node.Carries(pkt.Src))
	}
	add := func(pkt sim.Packet) {
		if exists(pkt) {
			out = append(out, pkt)
		}
	}
	for range 30 {
		add(r.packet(a))
		add(r.packet(b))
	}
	for _, f := range flows { // other clients of the same
		for range 3 {
			pkt := r.packet(pick(r, []*ir.Program{a, b}))
			pkt.Dst, pkt.Protocol, pkt.Port = f.Example.Packet.Dst, f.Example.Packet.Protocol, f.Example.Packet.Port
			if pkt.FromNode() && len(node.Addrs) > 0 {
				pkt.Src = pick(r, node.Addrs)
			}
			add(pkt)
		}
	}
	return out
}

// scope says by what is printed of a flow which packets it has.
type scope struct {
	where flow.Network
	a, b  *ir.Program
}

func (s *scope) holds(f *flow.Flow, pkt sim.Packet) bool {
	return slices.ContainsFunc(f.To, func(d flow.Destination) bool { return s.isTo(&d, pkt) }) &&
		slices.ContainsFunc(f.From, func(c flow.Clients) bool { return s.isFrom(&c, pkt) })
}

func (s *scope) isTo(d *flow.Destination, pkt sim.Packet) bool {
	if d.Match.Protocol != pkt.Protocol {
		return false
	}
	if len(d.Ports) == 0 {
		if d.Match.Port != pkt.Port {
			return false
		}
		if !d.Match.IsNodePort() {
			return d.Match.Addr == pkt.Dst
		}
	} else if !slices.ContainsFunc(d.Ports, func(p sim.Ports) bool { return p.First <= pkt.Port && pkt.Port <= p.Last }) {
		return false
	}
	if slices.ContainsFunc(d.Addrs, func(r prove.Addrs) bool { return r.First.Compare(pkt.Dst) <= 0 && pkt.Dst.Compare(r.Last) <= 0 }) {
		return true
	}
	if !d.Rest.IsValid() || !d.Rest.Contains(pkt.Dst) {
		return false
	}
	for _, p := range [...]*ir.Program{s.a, s.b} { // what no rule names in Rest
		for named := range sim.NewEvaluator(p).Destinations {
			if named.Contains(pkt.Dst) && named.Bits() > d.Rest.Bits() {
				return false
			}
		}
	}
	return true
}

func (s *scope) isFrom(c *flow.Clients, pkt sim.Packet) bool {
	in := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(pkt.Src) })
	}
	some := c.All || in(c.Prefixes)
	if c.Kind == flow.ThisNode || pkt.FromNode() {
		return c.Kind == flow.ThisNode && pkt.FromNode() && some
	}
	by := func(pattern string) bool {
		start, prefix := strings.CutSuffix(pattern, "*")
		return pkt.In == pattern || prefix && strings.HasPrefix(pkt.In, start)
	}
	if c.Interface != "" && !by(c.Interface) || slices.ContainsFunc(c.NotBy, by) {
		return false
	}
	pods := s.where.Pods
	byInterface := false // pods are told by it
	for _, p := range [...]*ir.Program{s.a, s.b} {
		switch d := &p.Node.Detector; d.Mode {
		case ir.DetectCIDR:
			pods = append(slices.Clone(pods), d.Prefix)
		case ir.DetectInterface:
			byInterface = byInterface || c.Interface == d.Interface || slices.Contains(c.NotBy, d.Interface)
		case ir.DetectPrefix:
			byInterface = byInterface || c.Interface == d.Interface+"*" || slices.Contains(c.NotBy, d.Interface+"*")
		}
	}
	pods = append(slices.Clone(pods), s.where.Here...)
	switch c.Kind {
	case flow.Outside:
		return some && !in(pods)
	case flow.PodsHere:
		return some && (byInterface || in(s.where.Here))
	case flow.PodsElsewhere:
		return some && in(pods) && (byInterface || !in(s.where.Here))
	}
	return some && in(pods)
}

// The same change in many Services is told once, and each of them is named.
func TestDiffAlike(t *testing.T) {
	const services = 200
	was, is := mixedCluster(t, services), mixedCluster(t, services)
	for _, svc := range is.Services() {
		for _, s := range is.Slices(svc.Name) {
			c := *s
			c.Endpoints = c.Endpoints[1:]
			is.SetSlice(&c)
		}
	}
	a, b := mixedProgram(t, ir.ModeNFTables, was), mixedProgram(t, ir.ModeNFTables, is)
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
	if all := flow.Count(merged.Services()).Flows; len(named) != len(found) || flows < all {
		t.Errorf("%d of %d Services and %d of %d flows are in an entry", len(named), len(found), flows, all)
	}
}

// BenchmarkDiff compares decoded snapshots of Services of all kinds with five
// endpoints each; compiling both sides is counted. One Service has another endpoint, each
// has one less, or the mode is another.
func BenchmarkDiff(b *testing.B) {
	const services = 10_000
	snap := mixedCluster(b, services)
	job := func(mode ir.Mode, snap *snapshot.Snapshot) *job {
		cfg := parseConfig(b, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.128.0.0/9\n"))
		return &job{Resolved: &config.Resolved{Config: cfg}, snap: snap, facts: compiler.Facts{NodeName: "node1"}}
	}
	less := func(most int) *snapshot.Snapshot {
		out := mixedCluster(b, services)
		for _, svc := range out.Services()[:most] {
			for _, s := range out.Slices(svc.Name) {
				c := *s
				c.Endpoints = c.Endpoints[:len(c.Endpoints)-1]
				out.SetSlice(&c)
			}
		}
		return out
	}
	for _, bb := range []struct {
		name string
		mode ir.Mode
		snap *snapshot.Snapshot
	}{{"one", ir.ModeNFTables, less(1)}, {"all", ir.ModeNFTables, less(services)}, {"mode", ir.ModeIPTables, snap}} {
		b.Run(bb.name, func(b *testing.B) {
			for b.Loop() {
				d, err := compareNodes(b.Context(), job(ir.ModeNFTables, snap), job(bb.mode, bb.snap), nodeChoice{}, flow.Compare)
				if err != nil {
					b.Fatal(err)
				}
				if err := d.writeText(io.Discard, false); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(d.Services)), "services")
			}
		})
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
		d    flowDiff
		want []string
		all  bool // nothing is left out
	}{
		{"few", flowDiff{Services: services(2, 3)}, []string{`[a]\(http:&#8203;//example.com) \| @&#8203;all`, "ns/s1", "health check 2 of s1"}, true},
		{"one Service with many lines", flowDiff{Services: services(1, 1000)}, []string{"health check 0 of s0", "\n1 entries more, 1 of them with their first lines above: `proxyc diff -o text` has them.\n"}, false},
		{"many Services", flowDiff{Services: services(1000, 10)}, []string{"entries more", "health check 9 of s0"}, false},
		{"facts of nodes", flowDiff{Facts: facts, Services: services(50, 1)}, []string{"settings more", "health check 0 of s0", "\n10 entries more: "}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var text bytes.Buffer
			if err := tt.d.writeMarkdown(&text); err != nil {
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

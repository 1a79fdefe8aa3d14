package conntrack

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// An address of the node can be the external address of a Service, on the port of another's node
// port. A full sync and syncs of single Services judge its flows equally.
func TestExactOfAnotherService(t *testing.T) {
	service := func(name, frontend, backend string) *ir.Program {
		p := program(t, ir.IPv4, []string{"192.0.2.11"}, map[string][]int{frontend: {0}}, []string{backend})
		p.Services[0].Name.Name = name
		return p
	}
	a, b := service("a", "node:30053/udp", "10.244.1.5:53"), service("b", "192.0.2.11:30053/udp", "10.244.1.9:53")
	all := &ir.Program{Family: ir.IPv4, Node: a.Node, Services: []ir.Service{a.Services[0], b.Services[0]}}
	flow := func(from string) Entry { return entry(ir.UDP, "192.0.2.200:5000", "192.0.2.11:30053", from) }
	f := &frontends{}
	look := map[string]*Selector{"all": f.update(ir.IPv4, &Work{Programs: ir.NewPrograms(all), All: true}).selector(ir.IPv4, f)}
	for _, p := range []*ir.Program{a, b} {
		s := &p.Services[0]
		w := &Work{Programs: ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: a.Node}), Changes: ir.Changes{IPv4: []ir.Change{{Name: s.Name, New: s}}}}
		look[s.Name.Name] = f.update(ir.IPv4, w).selector(ir.IPv4, f)
	}
	for what, sel := range look {
		if s, stale := sel.Stale(flow("10.244.1.9:53")); stale {
			t.Errorf("a change of %s: a valid flow of b is stale: %s", what, s.Why)
		}
		if s, stale := sel.Stale(flow("10.244.1.5:53")); !stale || s.Service.Name != "b" {
			t.Errorf("a change of %s: a flow to a's endpoint is stale: %t, of %s; want one of b", what, stale, s.Service)
		}
	}
}

// After each of several changes, a partial sync finds the same newly stale flows as a full sync,
// and no others.
func TestChangesJudgeAsAll(t *testing.T) {
	addrs := []string{"192.0.2.11", "198.51.100.11", "10.96.0.1", "10.96.0.2"} // the first two are the node's
	backends := []string{"10.244.1.1:53", "10.244.1.2:53", "10.244.1.3:53"}
	var flows []Entry
	for _, addr := range addrs {
		for port := 1; port <= 3; port++ {
			for _, from := range append(backends, fmt.Sprintf("%s:%d", addr, port)) {
				flows = append(flows, entry(ir.UDP, "192.0.2.200:5000", fmt.Sprintf("%s:%d", addr, port), from))
			}
		}
	}
	stale := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		node := program(t, ir.IPv4, addrs[:2], nil).Node
		var services [4]*ir.Service
		owner := map[string]int{} // of frontends
		live, verdicts := &frontends{}, map[Entry]bool{}
		live.update(ir.IPv4, &Work{Programs: ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}), All: true})
		for step := range 12 {
			before := map[string]int{}
			for m, i := range owner {
				before[m] = i
			}
			var changes []ir.Change
			for i := range services {
				if r.IntN(2) > 0 {
					continue
				}
				for m, of := range owner {
					if of == i {
						delete(owner, m)
					}
				}
				services[i] = nil
			}
			for i := range services {
				if services[i] != nil {
					continue
				}
				frontends := map[string][]int{}
				for _, addr := range append(addrs, "node") {
					m := fmt.Sprintf("%s:%d/udp", addr, 1+r.IntN(3))
					if _, taken := owner[m]; !taken && r.IntN(3) == 0 {
						frontends[m], owner[m] = []int{0}, i
					}
				}
				s := program(t, ir.IPv4, nil, frontends, backends[:r.IntN(len(backends)+1)]).Services[0]
				s.Name.Name = fmt.Sprint("s", i)
				services[i] = &s
				changes = append(changes, ir.Change{Name: s.Name, New: &s})
			}
			var removed []ir.Match
			for m := range before {
				if _, is := owner[m]; !is {
					removed = append(removed, match(t, m))
				}
			}
			all := &ir.Program{Family: ir.IPv4, Node: node}
			for _, s := range services {
				all.Services = append(all.Services, *s)
			}
			full := NewSelector(all, removed)
			w := &Work{Programs: ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}), Changes: ir.Changes{IPv4: changes}, Removed: removed}
			part := live.update(ir.IPv4, w).selector(ir.IPv4, live)
			for _, e := range flows {
				a, want := full.Stale(e)
				b, got := part.Stale(e)
				switch {
				case got && (!want || a.Why != b.Why || a.Service != b.Service):
					t.Fatalf("seed %d, step %d: %s: by the changes %q of %s, by all %t %q of %s", seed, step, e, b.Why, b.Service, want, a.Why, a.Service)
				case want && !got && !verdicts[e]:
					t.Fatalf("seed %d, step %d: %s: stale newly, of which the changes see nothing: %q", seed, step, e, a.Why)
				case got:
					stale++
				}
				verdicts[e] = want
			}
		}
	}
	if stale < 1000 {
		t.Errorf("only %d flows were stale", stale)
	}
}

// A sync that repairs missing rules checks the entries of all TCP frontends: connections may have begun
// without rules. Another one checks only those of new frontends.
func TestConnectionsWithoutRules(t *testing.T) {
	p := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:80/tcp": {0}}, []string{"10.244.1.5:80"})
	e := entry(ir.TCP, "192.0.2.200:5000", "10.96.0.10:80", "10.96.0.10:80")
	e.Unanswered = true
	f := &frontends{}
	for _, step := range []struct {
		missing, want bool
	}{{false, true}, {false, false}, {true, true}} {
		sel := f.update(ir.IPv4, &Work{Programs: ir.NewPrograms(p), All: true, Missing: step.missing}).selector(ir.IPv4, f)
		if _, stale := sel.Stale(e); stale != step.want {
			t.Errorf("rules missing: %t: stale: %t", step.missing, stale)
		}
	}
}

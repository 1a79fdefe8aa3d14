package serve

import (
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// Counting changes gives the same result as counting everything.
func TestTally(t *testing.T) {
	port := func(name string) ir.ServicePort {
		return ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "a"}, Port: name, Protocol: ir.TCP}
	}
	front := func(kind ir.Kind, p string, empty ir.Verdict) ir.Frontend {
		return ir.Frontend{Kind: kind, Port: port(p), Policy: ir.Local, Fallback: empty}
	}
	service := func(name string, frontends ...ir.Frontend) *ir.Service {
		return &ir.Service{Name: ir.Name{Namespace: "ns", Name: name}, Frontends: frontends}
	}
	both := service("a", front(ir.ClusterIP, "http", ir.Drop), front(ir.ClusterIP, "dns", ir.Drop),
		front(ir.NodePort, "http", ir.Drop), front(ir.LoadBalancer, "http", ir.Drop)) // one service port
	refusing := service("b", front(ir.ClusterIP, "http", ir.Reject)) // without any endpoint
	outside := service("c", front(ir.ExternalIP, "http", ir.Drop))

	var all Tally
	all.Reset(&ir.Program{Services: []ir.Service{*both, *refusing, *outside}})
	if want := (Tally{Internal: 2, External: 2}); all != want {
		t.Errorf("all: got %+v, want %+v", all, want)
	}
	var step Tally
	for _, s := range []*ir.Service{both, refusing, outside} {
		step.Change([]ir.Change{{Name: s.Name, New: s}})
	}
	if step != all {
		t.Errorf("one by one: got %+v, want %+v", step, all)
	}
	step.Change([]ir.Change{{Name: both.Name, Old: both, New: service("a", both.Frontends[0])}, {Name: outside.Name, Old: outside}})
	if want := (Tally{Internal: 1}); step != want {
		t.Errorf("some go: got %+v, want %+v", step, want)
	}
}

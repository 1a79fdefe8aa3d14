package snapshot

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

func TestSetSlice(t *testing.T) {
	name := func(n string) ir.Name { return ir.Name{Namespace: "x", Name: n} }
	slice := func(n, service string) *EndpointSlice {
		out := &EndpointSlice{Name: name(n), Object: n}
		if service != "" {
			out.Service = name(service)
		}
		return out
	}
	s := New()
	served := func(service string) string {
		var out string
		for _, slice := range s.Slices(name(service)) {
			out += slice.Object + " "
		}
		return out
	}
	steps := []struct {
		step  string
		do    func() []ir.Name
		dirty []ir.Name
		a, b  string // slices of Services a and b after it
	}{
		{"first", func() []ir.Name { return s.SetSlice(slice("s2", "a")) }, []ir.Name{name("a")}, "s2 ", ""},
		{"sorted", func() []ir.Name { return s.SetSlice(slice("s1", "a")) }, []ir.Name{name("a")}, "s1 s2 ", ""},
		{"replaced", func() []ir.Name { return s.SetSlice(slice("s1", "a")) }, []ir.Name{name("a")}, "s1 s2 ", ""},
		{"moved", func() []ir.Name { return s.SetSlice(slice("s1", "b")) }, []ir.Name{name("a"), name("b")}, "s2 ", "s1 "},
		{"of no Service", func() []ir.Name { return s.SetSlice(slice("s2", "")) }, []ir.Name{name("a")}, "", "s1 "},
		{"deleted, of no Service", func() []ir.Name { return s.DeleteSlice(name("s2")) }, nil, "", "s1 "},
		{"deleted", func() []ir.Name { return s.DeleteSlice(name("s1")) }, []ir.Name{name("b")}, "", ""},
		{"deleted again", func() []ir.Name { return s.DeleteSlice(name("s1")) }, nil, "", ""},
	}
	for _, step := range steps {
		if diff := cmp.Diff(step.dirty, step.do()); diff != "" {
			t.Errorf("%s: dirty (-want +got)\n%s", step.step, diff)
		}
		if got := served("a"); got != step.a {
			t.Errorf("%s: a has %q, want %q", step.step, got, step.a)
		}
		if got := served("b"); got != step.b {
			t.Errorf("%s: b has %q, want %q", step.step, got, step.b)
		}
	}
}

// A result of Slices does not change when slices are added or removed.
func TestSlicesIsNotChanged(t *testing.T) {
	s, service := New(), ir.Name{Name: "a"}
	for _, n := range []string{"1", "2", "3"} {
		s.SetSlice(&EndpointSlice{Name: ir.Name{Name: n}, Service: service})
	}
	before := s.Slices(service)
	s.DeleteSlice(ir.Name{Name: "1"})
	s.SetSlice(&EndpointSlice{Name: ir.Name{Name: "0"}, Service: service})
	for i, want := range []string{"1", "2", "3"} {
		if got := before[i].Name.Name; got != want {
			t.Errorf("slice %d: got %s, want %s", i, got, want)
		}
	}
}

func TestObjectsComeByName(t *testing.T) {
	s := New()
	for _, n := range []string{"b", "c", "a", "d"} {
		s.SetService(&Service{Name: ir.Name{Namespace: "x", Name: n}})
		s.SetNode(&Node{Name: n})
		s.SetServiceCIDR(&ServiceCIDR{Name: n})
	}
	s.DeleteService(ir.Name{Namespace: "x", Name: "d"})
	s.DeleteServiceCIDR("d")
	var services, nodes, cidrs string
	for _, o := range s.Services() {
		services += o.Name.Name
	}
	for _, o := range s.Nodes() {
		nodes += o.Name
	}
	for _, o := range s.ServiceCIDRs() {
		cidrs += o.Name
	}
	if services != "abc" || nodes != "abcd" || cidrs != "abc" {
		t.Errorf("got Services %s, Nodes %s, ServiceCIDRs %s, want abc, abcd and abc", services, nodes, cidrs)
	}
}

func TestFinish(t *testing.T) {
	s := New()
	for i := range 3 {
		name := ir.Name{Namespace: "x", Name: fmt.Sprint("s", i)}
		s.SetService(&Service{Name: name, Object: "Service " + name.String()})
		s.SetEndpoints(name, []*EndpointSlice{{FromEndpoints: true}})
	}
	s.DeleteEndpoints(ir.Name{Namespace: "x", Name: "s0"})
	if got := s.Finish(); len(got) != 2 || got[0].Object != "Service x/s1" || got[1].Object != "Service x/s2" {
		t.Errorf("got %v, want something for x/s1 and x/s2", got)
	}
	if got := New().Finish(); got != nil {
		t.Errorf("empty Snapshot: got %v, want nothing", got)
	}
}

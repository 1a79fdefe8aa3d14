package snapshot

import (
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// The estimate grows and shrinks with the content.
func TestBytes(t *testing.T) {
	s := New()
	slice := func(endpoints int) *EndpointSlice {
		return &EndpointSlice{Name: ir.Name{Namespace: "ns", Name: "a"}, Endpoints: make([]Endpoint, endpoints)}
	}
	last := s.Bytes()
	if last != 0 {
		t.Errorf("an empty Snapshot has %d bytes", last)
	}
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"Service", func() { s.SetService(&Service{Name: ir.Name{Namespace: "ns", Name: "a"}}) }},
		{"ports", func() {
			s.SetService(&Service{Name: ir.Name{Namespace: "ns", Name: "a"}, Ports: make([]ServicePort, 3)})
		}},
		{"slice", func() { s.SetSlice(slice(1)) }},
		{"endpoints", func() { s.SetSlice(slice(100)) }},
		{"Endpoints", func() { s.SetEndpoints(ir.Name{Namespace: "ns", Name: "b"}, []*EndpointSlice{slice(1)}) }},
		{"Node", func() { s.SetNode(&Node{Name: "n"}) }},
		{"ServiceCIDR", func() { s.SetServiceCIDR(&ServiceCIDR{Name: "c"}) }},
	} {
		step.change()
		now := s.Bytes()
		if now <= last {
			t.Errorf("%s: %d bytes, before %d", step.what, now, last)
		}
		last = now
	}
	s.Update(New())
	if n := s.Bytes(); n != 0 {
		t.Errorf("all gone: %d bytes", n)
	}
}

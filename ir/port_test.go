package ir_test

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// A Service is equal to its ports, joined.
func TestJoinPorts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		c := ir.Change{Old: irtest.Ports(random.IntN), New: irtest.Ports(random.IntN)}
		var old, now []*ir.Service
		var ports []ir.ServicePort
		for port, part := range c.ByPort {
			ports = append(ports, port)
			for _, side := range []struct {
				part *ir.Service
				all  *[]*ir.Service
			}{{part.Old, &old}, {part.New, &now}} {
				if side.part == nil {
					continue
				}
				*side.all = append(*side.all, side.part)
				for _, f := range side.part.Frontends {
					if f.Port != port || slices.ContainsFunc(f.Routes, func(r ir.Route) bool { return side.part.Pools[r.Pool].Port != port }) {
						t.Fatalf("port %s: has %v", port, f)
					}
				}
			}
		}
		if !slices.IsSortedFunc(ports, ir.ServicePort.Compare) || len(slices.Compact(ports)) != len(ports) {
			t.Errorf("ports: %v", ports)
		}
		for whole, parts := range map[*ir.Service][]*ir.Service{c.Old: old, c.New: now} {
			if d := cmp.Diff(whole, join(whole, parts), byValue, cmpopts.EquateEmpty()); d != "" {
				t.Fatalf("(-whole +joined):\n%s", d)
			}
		}
	}
}

func TestByPortOfAddedService(t *testing.T) {
	s := irtest.Ports(rand.New(rand.NewPCG(1, 1)).IntN)
	for _, c := range []ir.Change{{New: s}, {Old: s}} {
		n := 0
		for _, part := range c.ByPort {
			n++
			if (part.Old == nil) != (c.Old == nil) || (part.New == nil) != (c.New == nil) {
				t.Errorf("%+v", part)
			}
		}
		if n < 2 {
			t.Errorf("%d ports", n)
		}
	}
	for range (ir.Change{}).ByPort {
		t.Error("nothing has a port")
	}
}

// Equivalent compares every field of a Service except Origins.
func TestEquivalent(t *testing.T) {
	whole := func() *ir.Service {
		port := ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "a"}, Port: "http", Protocol: ir.TCP}
		backends := []ir.Backend{{AddrPort: netip.MustParseAddrPort("10.244.1.10:8080"), Local: true}}
		return &ir.Service{
			Frontends: []ir.Frontend{{Kind: ir.LoadBalancer, Match: ir.Match{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: ir.TCP, Port: 80}, Port: port, Policy: ir.Local,
				SourceRanges: []ir.SourceRange{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}, Routes: []ir.Route{{From: ir.Pods, Pool: 1, SNAT: true}},
				Maglev: &ir.Maglev{Slots: 251}, Fallback: ir.Drop}},
			Pools:    []ir.Pool{{Port: port, Policy: ir.Local, Backends: backends, Affinity: &ir.Affinity{Timeout: 1}}},
			Draining: []ir.Draining{{Port: port, Backends: backends}},
			Health:   &ir.HealthCheck{Port: 1, Local: 1},
			HNS:      &ir.HNSService{ExternalLocal: true, PreserveDIP: true, NoOptimize: true},
		}
	}
	compared := 0
	// each sets one value after the other to its zero value, and calls check.
	var each func(path string, v reflect.Value, check func(path string))
	each = func(path string, v reflect.Value, check func(string)) {
		switch {
		case v.Type() == reflect.TypeFor[ir.Origin]():
			v.Set(reflect.ValueOf(ir.Origin{Object: "changed"}))
			check(path)
			v.SetZero()
		case v.Kind() == reflect.Pointer:
			each(path, v.Elem(), check)
		case v.Kind() == reflect.Slice:
			each(path+"[0]", v.Index(0), check)
		case v.Kind() == reflect.Struct && v.Type().PkgPath() == "github.com/proxyc/proxyc/ir":
			for i := range v.NumField() {
				each(path+"."+v.Type().Field(i).Name, v.Field(i), check)
			}
			return
		}
		if v.Type() == reflect.TypeFor[ir.Origin]() || v.IsZero() {
			return
		}
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.SetZero()
		check(path)
		v.Set(was)
	}
	a, b := whole(), whole()
	if !(ir.Change{Old: a, New: b}).Equivalent() {
		t.Error("equal versions are not equivalent")
	}
	each("", reflect.ValueOf(b).Elem(), func(path string) {
		compared++
		origin := slices.Contains([]string{".Origin", ".FallbackOrigin"}, path[max(0, lastDot(path)):])
		name := path == ".Name.Namespace" || path == ".Name.Name"
		if (ir.Change{Old: a, New: b}).Equivalent() != (origin || name) {
			t.Errorf("%s differs: equivalent: %t", path, !(origin || name))
		}
	})
	if compared < 40 {
		t.Errorf("%d values", compared)
	}
	if (ir.Change{Old: a}).Equivalent() || (ir.Change{New: a}).Equivalent() || !(ir.Change{}).Equivalent() {
		t.Error("a Service that is added or removed is equivalent to none")
	}
}

func lastDot(path string) int {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '.' {
			return i
		}
	}
	return 0
}

// join returns a Service with the given ports, which ByPort yielded in this order. It is equal to whole in
// all else.
func join(whole *ir.Service, ports []*ir.Service) *ir.Service {
	s := *whole
	s.Frontends, s.Pools, s.Draining = nil, nil, nil
	for _, part := range ports {
		for _, f := range part.Frontends {
			f.Routes = slices.Clone(f.Routes)
			for i := range f.Routes {
				f.Routes[i].Pool += len(s.Pools)
			}
			s.Frontends = append(s.Frontends, f)
		}
		s.Pools, s.Draining = append(s.Pools, part.Pools...), append(s.Draining, part.Draining...)
	}
	slices.SortFunc(s.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) })
	return &s
}

package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables/iptest"
)

// history generates Programs whose Services are added, changed and removed. It
// uses few addresses, so that they move between Services, and trees grow and
// shrink.
type history struct {
	random *rand.Rand
	now    *ir.Program
}

func (h *history) addr(net byte) netip.Addr {
	low := []byte{byte(h.random.IntN(3)) * 16, byte(h.random.IntN(64))}
	if h.now.Family == ir.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, net, 8: low[0], 14: byte(h.random.IntN(2)), 15: low[1]})
	}
	return netip.AddrFrom4([4]byte{10, net, low[0], low[1]})
}

func (h *history) service(name ir.Name) *ir.Service {
	s := &ir.Service{Name: name}
	port := ir.ServicePort{Service: name, Protocol: ir.TCP}
	origin := ir.Origin{Object: fmt.Sprint("Service ", name, " ", h.random.IntN(3))}
	routes := []ir.Route{{From: ir.Pods, Origin: origin}, {From: ir.Any, SNAT: true, Origin: origin}}
	if h.random.IntN(3) > 0 {
		pool := ir.Pool{Port: port}
		for range h.random.IntN(4) {
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(h.addr(1), 80), Origin: origin})
		}
		s.Pools = []ir.Pool{pool}
	} else {
		routes = nil
	}
	f := ir.Frontend{Match: ir.Match{Addr: h.addr(2), Protocol: ir.TCP, Port: uint16(80 + h.random.IntN(2))},
		Port: port, Routes: routes, Origin: origin, FallbackOrigin: origin}
	s.Frontends = append(s.Frontends, f)
	f.Kind, f.Match.Addr = ir.LoadBalancer, h.addr(3)
	if h.random.IntN(2) == 0 {
		f.SourceRanges = []ir.SourceRange{{Prefix: netip.PrefixFrom(f.Match.Addr, 24).Masked(), Origin: origin}}
	}
	if h.random.IntN(3) > 0 {
		s.Frontends = append(s.Frontends, f)
		f.Kind, f.SourceRanges = ir.NodePort, nil
		f.Match = ir.Match{Protocol: []ir.Protocol{ir.TCP, ir.UDP}[h.random.IntN(2)], Port: uint16(30000 + h.random.IntN(500))}
		s.Frontends = append(s.Frontends, f)
	}
	if h.random.IntN(5) == 0 {
		s.Health = &ir.HealthCheck{Port: uint16(32000 + h.random.IntN(5)), Origin: origin}
	}
	return s
}

// step changes up to most of n Services. Frontends remain unique.
func (h *history) step(n, most int) []ir.Change {
	of := map[ir.Name]*ir.Service{}
	for i := range h.now.Services {
		of[h.now.Services[i].Name] = &h.now.Services[i]
	}
	changes := map[ir.Name]ir.Change{}
	for range h.random.IntN(most) + 1 {
		name := ir.Name{Namespace: "ns", Name: fmt.Sprintf("s%03d", h.random.IntN(n))}
		if _, again := changes[name]; !again {
			changes[name] = ir.Change{Name: name, Old: of[name]}
		}
		delete(of, name)
	}
	taken := map[ir.Match]bool{}
	for _, s := range of {
		for _, f := range s.Frontends {
			taken[f.Match] = true
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(changes), ir.Name.Compare) {
		if h.random.IntN(4) == 0 {
			continue
		}
		s := h.service(name)
		s.Frontends = slices.DeleteFunc(s.Frontends, func(f ir.Frontend) bool { return taken[f.Match] })
		for _, f := range s.Frontends {
			taken[f.Match] = true
		}
		of[name], changes[name] = s, ir.Change{Name: name, Old: changes[name].Old, New: s}
	}
	next := *h.now
	next.Services = nil
	for _, name := range slices.SortedFunc(maps.Keys(of), ir.Name.Compare) {
		next.Services = append(next.Services, *of[name])
	}
	h.now = &next
	return slices.Collect(maps.Values(changes))
}

// TestLowererIsLower compares the result of a Lowerer for each change with the
// Rulesets before and after it.
func TestLowererIsLower(t *testing.T) {
	for _, family := range []ir.Family{ir.IPv4, ir.IPv6} {
		for seed := range uint64(2) {
			h := history{random: rand.New(rand.NewPCG(seed, 1)), now: iptest.Many(family, 0, 0)}
			h.now.Node.Addrs = []netip.Addr{h.addr(3), h.addr(3), h.addr(3)}
			a, whole := NewLowerer(h.now), Lower(h.now)
			for i := range 120 {
				n, most := 20, 3
				if i/30%2 == 1 { // trees are created, and removed at the end
					n, most = 300, 200
				}
				var changes []ir.Change
				if i%60 == 59 {
					changes = h.clear()
				} else {
					changes = h.step(n, most)
				}
				have, want := a.Change(changes)
				next := Lower(h.now)
				if a.Size() != next.Size() || NewLowerer(h.now).Size() != next.Size() {
					t.Errorf("%s, seed %d, change %d: %v rules, at once %v, want %v", family, seed, i, a.Size(), NewLowerer(h.now).Size(), next.Size())
				}
				for k, table := range whole.Tables() {
					check(t, fmt.Sprintf("%s, seed %d, change %d", family, seed, i), table, have.Tables()[k], want.Tables()[k], next.Tables()[k])
				}
				if whole = next; t.Failed() {
					return
				}
			}
		}
	}
}

// clear removes all Services.
func (h *history) clear() (changes []ir.Change) {
	for i := range h.now.Services {
		s := &h.now.Services[i]
		changes = append(changes, ir.Change{Name: s.Name, Old: s})
	}
	next := *h.now
	next.Services = nil
	h.now = &next
	return changes
}

// check checks that have is a part of before, and that replacing it by want
// yields after.
func check(t *testing.T, when string, before, have, want, after *Table) {
	t.Helper()
	if !reflect.DeepEqual(have.Jumps, before.Jumps) || !reflect.DeepEqual(want.Jumps, after.Jumps) {
		t.Errorf("%s: %s: other jumps", when, before.Name)
	}
	rules := func(t *Table) map[string][]Rule {
		m := map[string][]Rule{}
		for _, c := range t.Chains {
			m[c.Name] = append([]Rule{}, c.Rules...)
		}
		return m
	}
	got := rules(before)
	for name, r := range rules(have) {
		if !reflect.DeepEqual(got[name], r) {
			t.Errorf("%s: %s %s: was\n%v, not\n%v", when, before.Name, name, got[name], r)
		}
		delete(got, name)
	}
	for name, r := range rules(want) {
		if got[name] != nil {
			t.Errorf("%s: %s %s: is wanted, and not said to be there", when, before.Name, name)
		}
		got[name] = r
	}
	for name, r := range rules(after) {
		if !reflect.DeepEqual(got[name], r) {
			t.Errorf("%s: %s %s: is\n%v, not\n%v", when, before.Name, name, got[name], r)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s: %s %s: is left", when, before.Name, name)
	}
}

// TestLowererMakesFewChains changes one Service of many. The number of rebuilt
// chains does not depend on the number of Services.
func TestLowererMakesFewChains(t *testing.T) {
	for _, n := range []int{500, 8000} {
		p := iptest.Many(ir.IPv4, n, 3)
		have, want := NewLowerer(p).Change([]ir.Change{{Name: p.Services[111].Name, Old: &p.Services[111], New: &p.Services[111]}})
		for _, r := range []*Ruleset{have, want} {
			if chains := len(r.Filter.Chains) + len(r.Nat.Chains); chains > 30 {
				t.Errorf("%d Services: %d chains, want 30 at most", n, chains)
			}
		}
	}
}

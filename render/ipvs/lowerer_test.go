package ipvs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// randomService returns a Service that shares addresses, backends and ports with
// others, including node ports at addresses of external IPs.
func randomService(random *rand.Rand, name ir.Name, node *ir.Node, f ir.Family) *ir.Service {
	addr := func(net, most int) netip.Addr {
		a := netip.AddrFrom4([4]byte{10, byte(net), 0, byte(1 + random.IntN(most))})
		if f == ir.IPv6 {
			a = six(a)
		}
		return a
	}
	proto := []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP}[random.IntN(3)]
	s := &ir.Service{Name: name}
	port := ir.ServicePort{Service: name, Protocol: proto}
	pool := ir.Pool{Port: port}
	if random.IntN(3) == 0 {
		pool.Affinity = &ir.Affinity{Timeout: 1e9 * 60}
	}
	seen := map[netip.Addr]bool{}
	for range random.IntN(4) {
		a := addr(1, 6)
		if !seen[a] {
			seen[a] = true
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(a, 8080), Local: random.IntN(2) == 0})
		}
	}
	s.Pools = []ir.Pool{pool}
	frontend := func(kind ir.Kind, a netip.Addr, number uint16) ir.Frontend {
		return ir.Frontend{Kind: kind, Match: ir.Match{Addr: a, Protocol: proto, Port: number}, Port: port,
			Routes: []ir.Route{{Pool: 0, SNAT: random.IntN(2) == 0}}}
	}
	// One address for several Services, with a different port each.
	own := uint16(1000 + slices.Index([]string{"a", "b", "c", "d", "e"}, name.Name))
	s.Frontends = append(s.Frontends, frontend(ir.ClusterIP, addr(96, 3), own))
	if random.IntN(2) == 0 {
		s.Frontends = append(s.Frontends, frontend(ir.ExternalIP, node.Addrs[0], own+30000))
	}
	if random.IntN(2) == 0 {
		lb := frontend(ir.LoadBalancer, addr(97, 3), own)
		for range random.IntN(3) {
			lb.SourceRanges = append(lb.SourceRanges, ir.SourceRange{Prefix: netip.PrefixFrom(addr(98, 3), f.Bits()-random.IntN(2)*f.Bits()).Masked()})
		}
		s.Frontends = append(s.Frontends, lb)
	}
	if random.IntN(2) == 0 {
		// The node port of the next Service equals the port of this one's
		// external IP.
		s.Frontends = append(s.Frontends, frontend(ir.NodePort, netip.Addr{}, own+29999))
	}
	if random.IntN(3) == 0 {
		s.Health = &ir.HealthCheck{Port: uint16(32000 + random.IntN(2))}
	}
	return s
}

// After any history of changes, the result equals that of lowering the whole
// Program.
func TestChangesAreTheWhole(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 12))
		family := ir.Families()[seed%2]
		p := &ir.Program{Family: family, Node: program(family).Node}
		l, rules := NewLowerer(p), NewRulesLowerer(p)
		now := map[ir.Name]*ir.Service{}
		servers, elements := map[ir.Match]VirtualServer{}, map[ElementKey]bool{}
		for step := range 30 {
			var changes []ir.Change
			for _, n := range []string{"a", "b", "c", "d", "e"} {
				if random.IntN(3) > 0 {
					continue
				}
				c := ir.Change{Name: ir.Name{Namespace: "ns", Name: n}}
				c.Old = now[c.Name]
				delete(now, c.Name)
				if random.IntN(4) > 0 {
					c.New = randomService(random, c.Name, &p.Node, family)
					now[c.Name] = c.New
				}
				changes = append(changes, c)
			}
			p.Services = nil
			for _, name := range slices.SortedFunc(maps.Keys(now), ir.Name.Compare) {
				p.Services = append(p.Services, *now[name])
			}
			whole := Lower(p)
			where := fmt.Sprintf("seed %d, step %d", seed, step)

			old, want := l.Change(changes)
			for _, v := range old.VirtualServers {
				if have, ok := servers[v.Key]; !ok || have.String() != v.String() {
					t.Fatalf("%s: %s was not what changes: %v", where, v.Key, have)
				}
				delete(servers, v.Key)
			}
			for _, v := range want.VirtualServers {
				servers[v.Key] = v
			}
			for _, e := range want.Elements {
				if elements[e.ElementKey] {
					t.Fatalf("%s: %s %s comes twice", where, e.Set, e)
				}
				elements[e.ElementKey] = true
			}
			for _, e := range old.Elements {
				if !elements[e.ElementKey] {
					t.Fatalf("%s: %s %s goes and was not there", where, e.Set, e)
				}
				delete(elements, e.ElementKey)
			}
			var size [numSets]int
			for _, e := range whole.Elements {
				if size[e.Set]++; !elements[e.ElementKey] {
					t.Fatalf("%s: %s %s lacks", where, e.Set, e)
				}
			}
			if len(elements) != len(whole.Elements) || l.size != size {
				t.Fatalf("%s: %d elements %v, want %d %v", where, len(elements), l.size, len(whole.Elements), size)
			}
			for _, v := range whole.VirtualServers {
				if have, ok := servers[v.Key]; !ok || have.String() != v.String() {
					t.Fatalf("%s: %s:\n%s", where, v.Key, cmp.Diff(v.String(), have.String()))
				}
			}
			if len(servers) != len(whole.VirtualServers) {
				t.Fatalf("%s: %d virtual servers, want %d", where, len(servers), len(whole.VirtualServers))
			}
			before := NewRulesLowerer(p).ruleset().Filter
			if _, want := rules.Change(changes); len(want.Filter.Chains) != len(before.Chains) || rules.Size() != whole.Rules.Size() {
				t.Fatalf("%s: %v rules, want %v", where, rules.Size(), whole.Rules.Size())
			}
		}
		var gone []ir.Change
		for name, s := range now {
			gone = append(gone, ir.Change{Name: name, Old: s})
		}
		l.Change(gone)
		if len(l.users)+len(l.claims) > 0 || l.size != [numSets]int{} {
			t.Fatalf("without Services it remembers %v, %v", l.users, l.claims)
		}
	}
}

func (v *VirtualServer) String() string {
	return fmt.Sprint(v.Key, v.Kind, v.Scheduler, v.Flags, v.Timeout, v.RealServers)
}

// A change of one endpoint changes one real server and nothing else.
func TestOneEndpointIsOneRealServer(t *testing.T) {
	p := manyServices(1000)
	l := NewLowerer(p)
	old := &p.Services[500]
	now := *old
	now.Pools = slices.Clone(old.Pools)
	now.Pools[0].Backends = slices.Clone(old.Pools[0].Backends)[1:]
	have, want := l.Change([]ir.Change{{Name: old.Name, Old: old, New: &now}})
	if len(want.VirtualServers) != 1 || len(want.Elements) > 0 || len(have.Elements) > 1 {
		t.Errorf("%d virtual servers, %d elements added, %d removed", len(want.VirtualServers), len(want.Elements), len(have.Elements))
	}
}

package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Every source meets every port of every address under every setting, in the
// rules as in the IR.
func TestEvalIsTrace(t *testing.T) {
	for _, f := range families {
		for name, vary := range variants(f) {
			t.Run(f.String()+" "+name, func(t *testing.T) {
				p := richProgram(f)
				vary(&p.Node)
				rules := NewEvaluator(Lower(p), sim.NewOwn(f.Loopback(), p.Node.Addrs))
				for _, c := range rules.equals {
					t.Errorf("chain %s has the hook and priority of another one: nobody knows which is first", c.Name)
				}
				meaning := sim.NewEvaluator(p)
				n := 0
				fates := map[sim.Fate]int{}
				for pkt := range allPackets(p) {
					got, want := rules.Outcome(pkt, nil), meaning.Outcome(pkt, nil)
					if !got.Equal(want) {
						t.Fatalf("%v (-want +got):\n%s", pkt, cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })))
					}
					n++
					fates[want.Fate]++
				}
				if len(fates) != 4 {
					t.Errorf("%d packets met only these fates: %v", n, fates)
				}
			})
		}
	}
}

func allPackets(p *ir.Program) func(func(sim.Packet) bool) {
	f := p.Family
	type source struct{ addr, in string }
	sources := []source{
		{"10.244.1.10", "cni0"}, {"10.244.1.11", "vetha"}, {"10.244.2.10", "eth0"}, {"192.0.2.200", "eth0"},
		{"192.0.2.12", "eth0"}, {"198.51.100.200", "eth1"}, {"192.0.2.11", ""}, {"10.244.1.1", ""},
	}
	return func(yield func(sim.Packet) bool) {
		for _, s := range sources {
			for _, svc := range p.Services {
				for _, m := range destinations(p, &svc) {
					for _, proto := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
						if !yield(sim.Packet{Src: addr(f, s.addr), In: s.in, Dst: m.Addr, Port: m.Port, Protocol: proto}) {
							return
						}
					}
				}
			}
		}
	}
}

// destinations returns the frontends of a Service, and what is beside them.
func destinations(p *ir.Program, svc *ir.Service) []ir.Match {
	var all []ir.Match
	for _, f := range svc.Frontends {
		addrs := []netip.Addr{f.Match.Addr}
		if f.Match.IsNodePort() {
			addrs = append(p.Node.Addrs[:len(p.Node.Addrs):len(p.Node.Addrs)], p.Family.Loopback().Addr(),
				addr(p.Family, "192.0.2.99"), addr(p.Family, "203.0.113.99"))
		}
		for _, a := range addrs {
			all = append(all, ir.Match{Addr: a, Port: f.Match.Port}, ir.Match{Addr: a, Port: 7})
		}
	}
	return append(all, ir.Match{Addr: addr(p.Family, "10.96.0.99"), Port: 80})
}

// Broken tables have an outcome, too.
func TestEvalOfBrokenTables(t *testing.T) {
	rule := func(s ...Stmt) []Rule { return []Rule{{Stmts: s}} }
	base := func(s ...Stmt) Chain {
		return Chain{Name: "base", Base: &Base{NAT: true, Hook: Prerouting}, Rules: rule(s...)}
	}
	tests := []struct {
		name string
		r    Ruleset
		want sim.Fate
	}{
		{"empty", Ruleset{}, sim.NotOurs},
		{"missing chain", Ruleset{Chains: []Chain{base(Verdict{Goto, "gone"})}}, sim.Dropped},
		{"loop", Ruleset{Chains: []Chain{base(Verdict{Jump, "base"})}}, sim.Dropped},
		{"missing map", Ruleset{Chains: []Chain{base(LookupVerdict{frontendTerms(false), "gone"})}}, sim.NotOurs},
		{"key of another shape", Ruleset{
			Chains: []Chain{base(LookupVerdict{frontendTerms(true), "m"})},
			Sets:   []Set{{Name: "m", Key: frontendKey, Data: VerdictData, Elements: []Element{{}}}}}, sim.NotOurs},
		{"choice of none", Ruleset{
			Chains: []Chain{base(LookupDNAT{Key: []Term{{Field: Random}}, Map: "m"})},
			Sets:   []Set{{Name: "m", Key: []Type{TypeSlot}, Data: AddrPortData}}}, sim.NotOurs},
	}
	pkt := sim.Packet{Src: addr(ir.IPv4, "192.0.2.200"), Dst: addr(ir.IPv4, "192.0.2.11"), Protocol: ir.TCP, Port: 80, In: "eth0"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.r.Eval(pkt, func(netip.Addr) bool { return false }); got.Fate != tt.want {
				t.Errorf("fate: want %v, got %v", tt.want, got.Fate)
			}
		})
	}
}

// The evaluation must see what is wrong with a table, or it proves nothing.
func TestEvalSeesFaults(t *testing.T) {
	faults := map[string]func(*Ruleset){
		"a backend is missing":    func(r *Ruleset) { r.Sets[Backends].Elements = r.Sets[Backends].Elements[1:] },
		"the hairpin is missing":  func(r *Ruleset) { r.Sets[Hairpin].Elements = nil },
		"nothing is remembered":   func(r *Ruleset) { r.Sets[AffinityIPs].Elements = nil },
		"backends are forgotten":  func(r *Ruleset) { removeFirstRule(r, chainNATPostrouting) },
		"nothing guards":          func(r *Ruleset) { removeRules(r, chainFirewallCheck) },
		"no guard of what leaves": func(r *Ruleset) { removeFirstRule(r, chainClusterIPsCheck) },
		"no guard of the node":    func(r *Ruleset) { removeFirstRule(r, chainServiceEndpoints) },
		"nobody is admitted": func(r *Ruleset) {
			r.Sets[slices.IndexFunc(r.Sets, func(s Set) bool { return IsSources(s.Name) })].Elements = nil
		},
		"nobody is guarded":       func(r *Ruleset) { r.Sets[FirewallLists].Elements = nil },
		"no address is guarded":   func(r *Ruleset) { r.Sets[FirewallAddrs].Elements = nil },
		"nothing is refused":      func(r *Ruleset) { r.Sets[NoEndpointIPs].Elements = nil },
		"local is cluster":        func(r *Ruleset) { r.Sets[OutsideIPs].Elements = nil },
		"no reject of ClusterIPs": func(r *Ruleset) { r.Sets[ClusterIPs].Elements = nil },
		"no masquerade":           func(r *Ruleset) { removeRules(r, chainNATPostrouting) },
		"a slot is missing":       func(r *Ruleset) { r.Sets[MaglevBackends].Elements = r.Sets[MaglevBackends].Elements[1:] },
		"slots are exchanged": func(r *Ruleset) { // which changes no backend's share
			all := r.Sets[MaglevPortBackends].Elements
			i := slices.IndexFunc(all, func(e Element) bool { return e.To != all[0].To })
			all[0].To, all[i].To = all[i].To, all[0].To
		},
		"no node ports": func(r *Ruleset) { r.Sets[ServicePorts].Elements = nil },
	}
	for name, spoil := range faults {
		t.Run(name, func(t *testing.T) {
			p := richProgram(ir.IPv4)
			for i := range p.Services { // one backend is the node itself
				p.Services[i].Pools[1].Backends[1].AddrPort = netip.AddrPortFrom(p.Node.IP, 9090)
			}
			r := Lower(p)
			spoil(r)
			for pkt := range allPackets(p) {
				if !r.Eval(pkt, p.Node.HasAddr).Equal(sim.Trace(p, pkt)) {
					return
				}
			}
			t.Error("no packet shows it")
		})
	}
}

func removeFirstRule(r *Ruleset, chain string) {
	for i := range r.Chains {
		if r.Chains[i].Name == chain {
			r.Chains[i].Rules = r.Chains[i].Rules[1:]
		}
	}
}

func removeRules(r *Ruleset, chain string) {
	for i := range r.Chains {
		if r.Chains[i].Name == chain {
			r.Chains[i].Rules = nil
		}
	}
}

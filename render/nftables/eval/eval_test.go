package eval

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Every source and every port of every address, under every setting, have the
// same outcome under the rules and the IR.
func TestEvalIsTrace(t *testing.T) {
	for _, f := range ir.Families() {
		for name, vary := range nftest.Variants(f) {
			t.Run(f.String()+" "+name, func(t *testing.T) {
				p := nftest.Program(f)
				vary(&p.Node)
				rules := NewEvaluator(nftables.Lower(p), sim.NewOwn(f.Loopback(), p.Node.Addrs))
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
						if !yield(sim.Packet{Src: nftest.Addr(f, s.addr), In: s.in, Dst: m.Addr, Port: m.Port, Protocol: proto}) {
							return
						}
					}
				}
			}
		}
	}
}

// destinations returns the frontends of a Service, and addresses and ports next
// to them.
func destinations(p *ir.Program, svc *ir.Service) []ir.Match {
	var all []ir.Match
	for _, f := range svc.Frontends {
		addrs := []netip.Addr{f.Match.Addr}
		if f.Match.IsNodePort() {
			addrs = append(p.Node.Addrs[:len(p.Node.Addrs):len(p.Node.Addrs)], p.Family.Loopback().Addr(),
				nftest.Addr(p.Family, "192.0.2.99"), nftest.Addr(p.Family, "203.0.113.99"))
		}
		for _, a := range addrs {
			all = append(all, ir.Match{Addr: a, Port: f.Match.Port}, ir.Match{Addr: a, Port: 7})
		}
	}
	return append(all, ir.Match{Addr: nftest.Addr(p.Family, "10.96.0.99"), Port: 80})
}

// Broken tables have an outcome, too.
func TestEvalOfBrokenTables(t *testing.T) {
	rule := func(s ...nftables.Stmt) []nftables.Rule { return []nftables.Rule{{Stmts: s}} }
	base := func(s ...nftables.Stmt) nftables.Chain {
		return nftables.Chain{Name: "base", Base: &nftables.Base{NAT: true, Hook: nftables.Prerouting}, Rules: rule(s...)}
	}
	frontend := []nftables.Term{{Field: nftables.DstAddr}, {Field: nftables.L4Proto}, {Field: nftables.DstPort}}
	tests := []struct {
		name string
		r    nftables.Ruleset
		want sim.Fate
	}{
		{"empty", nftables.Ruleset{}, sim.NotOurs},
		{"missing chain", nftables.Ruleset{Chains: []nftables.Chain{base(nftables.Verdict{Kind: nftables.Goto, Chain: "gone"})}}, sim.Dropped},
		{"loop", nftables.Ruleset{Chains: []nftables.Chain{base(nftables.Verdict{Kind: nftables.Jump, Chain: "base"})}}, sim.Dropped},
		{"missing map", nftables.Ruleset{Chains: []nftables.Chain{base(nftables.LookupVerdict{Key: frontend, Map: "gone"})}}, sim.NotOurs},
		{"key of another shape", nftables.Ruleset{
			Chains: []nftables.Chain{base(nftables.LookupVerdict{Key: frontend[1:], Map: "m"})},
			Sets:   []nftables.Set{{Name: "m", Key: []nftables.Type{nftables.TypeAddr, nftables.TypeProto, nftables.TypePort}, Data: nftables.VerdictData, Elements: []nftables.Element{{}}}}}, sim.NotOurs},
		{"choice of none", nftables.Ruleset{
			Chains: []nftables.Chain{base(nftables.LookupDNAT{Key: []nftables.Term{{Field: nftables.Random}}, Map: "m"})},
			Sets:   []nftables.Set{{Name: "m", Key: []nftables.Type{nftables.TypeSlot}, Data: nftables.AddrPortData}}}, sim.NotOurs},
	}
	pkt := sim.Packet{Src: nftest.Addr(ir.IPv4, "192.0.2.200"), Dst: nftest.Addr(ir.IPv4, "192.0.2.11"), Protocol: ir.TCP, Port: 80, In: "eth0"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := NewEvaluator(&tt.r, sim.OwnOf(func(netip.Addr) bool { return false })).Outcome(pkt, nil); got.Fate != tt.want {
				t.Errorf("fate: want %v, got %v", tt.want, got.Fate)
			}
		})
	}
}

// The evaluation must detect faults of a table. Otherwise it proves nothing.
func TestEvalSeesFaults(t *testing.T) {
	named := func(r *nftables.Ruleset, prefix string) *nftables.Set {
		return &r.Sets[slices.IndexFunc(r.Sets, func(s nftables.Set) bool { return strings.HasPrefix(s.Name, prefix) })]
	}
	faults := map[string]func(*nftables.Ruleset){
		"a backend of a shared pool is missing": func(r *nftables.Ruleset) {
			s := named(r, "pool-")
			s.Elements = s.Elements[1:]
		},
		"the members of a shared pool are missing": func(r *nftables.Ruleset) {
			for i := range r.Sets {
				if strings.HasPrefix(r.Sets[i].Name, "members-") {
					r.Sets[i].Elements = nil
				}
			}
		},
		"no frontend of a shared pool remembers":  func(r *nftables.Ruleset) { r.Sets[nftables.AffinityPools].Elements = nil },
		"no node port of a shared pool remembers": func(r *nftables.Ruleset) { r.Sets[nftables.AffinityPortPools].Elements = nil },
		"a backend is missing":                    func(r *nftables.Ruleset) { r.Sets[nftables.Backends].Elements = r.Sets[nftables.Backends].Elements[1:] },
		"the hairpin is missing":                  func(r *nftables.Ruleset) { r.Sets[nftables.Hairpin].Elements = nil },
		"nothing is remembered":                   func(r *nftables.Ruleset) { r.Sets[nftables.AffinityIPs].Elements = nil },
		"backends are forgotten":                  func(r *nftables.Ruleset) { removeFirstRule(r, "nat-postrouting") },
		"nothing guards": func(r *nftables.Ruleset) {
			for i := range r.Chains {
				c := &r.Chains[i]
				if last := len(c.Rules) - 1; strings.HasPrefix(c.Name, "sources-") && c.Rules[last].Text(ir.IPv4) == "drop" {
					c.Rules = c.Rules[:last]
				}
			}
		},
		"nobody is admitted": func(r *nftables.Ruleset) {
			named(r, "sources-").Elements = nil
		},
		"nothing is refused":      func(r *nftables.Ruleset) { r.Sets[nftables.NoEndpointIPs].Elements = nil },
		"local is cluster":        func(r *nftables.Ruleset) { r.Sets[nftables.OutsideIPs].Elements = nil },
		"no reject of ClusterIPs": func(r *nftables.Ruleset) { r.Sets[nftables.ClusterIPs].Elements = nil },
		"no masquerade":           func(r *nftables.Ruleset) { removeRules(r, "nat-postrouting") },
		"a slot is missing": func(r *nftables.Ruleset) {
			r.Sets[nftables.MaglevBackends].Elements = r.Sets[nftables.MaglevBackends].Elements[1:]
		},
		"a slot of a shared pool is missing": func(r *nftables.Ruleset) {
			s := named(r, "maglev-pool-")
			s.Elements = s.Elements[1:]
		},
		"slots are exchanged": func(r *nftables.Ruleset) { // without changing a backend's share
			all := r.Sets[nftables.MaglevPortBackends].Elements
			i := slices.IndexFunc(all, func(e nftables.Element) bool { return e.To != all[0].To })
			all[0].To, all[i].To = all[i].To, all[0].To
		},
		"no node ports": func(r *nftables.Ruleset) { r.Sets[nftables.ServicePorts].Elements = nil },
	}
	for name, spoil := range faults {
		t.Run(name, func(t *testing.T) {
			p := nftest.Program(ir.IPv4)
			for i := range p.Services { // one backend is the node itself
				p.Services[i].Pools[1].Backends[1].AddrPort = netip.AddrPortFrom(p.Node.IP, 9090)
			}
			r := nftables.Lower(p)
			spoil(r)
			rules := NewEvaluator(r, sim.OwnOf(p.Node.HasAddr))
			for pkt := range allPackets(p) {
				if !rules.Outcome(pkt, nil).Equal(sim.Trace(p, pkt)) {
					return
				}
			}
			t.Error("no packet shows it")
		})
	}
}

func removeFirstRule(r *nftables.Ruleset, chain string) {
	for i := range r.Chains {
		if r.Chains[i].Name == chain {
			r.Chains[i].Rules = r.Chains[i].Rules[1:]
		}
	}
}

func removeRules(r *nftables.Ruleset, chain string) {
	for i := range r.Chains {
		if r.Chains[i].Name == chain {
			r.Chains[i].Rules = nil
		}
	}
}

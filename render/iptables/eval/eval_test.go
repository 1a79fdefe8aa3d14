package eval

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/iptables/iptest"
	"github.com/proxyc/proxyc/render/iptables/parse"
)

// sources contains one source of each kind that rules distinguish.
var sources = []string{
	"10.244.1.20@cni0", "10.244.1.10@cni0", "10.244.2.10@eth0", "198.51.100.200@eth0", "198.18.7.7@eth0",
	"192.0.2.11", "127.0.0.1", "10.244.1.1",
}

// destinations returns all frontends' addresses, and some without a frontend.
func destinations(p *ir.Program) []string {
	to := []string{"10.96.0.10:81", "10.96.200.1:80", "192.0.2.11:22", "203.0.113.10:8080", "10.244.1.10:8080", "192.0.2.11:80"}
	for _, s := range p.Services {
		for _, f := range s.Frontends {
			if !f.Match.IsNodePort() {
				to = append(to, f.Match.String())
				continue
			}
			port := strings.TrimPrefix(f.Match.String(), "node")
			to = append(to, "192.0.2.11"+port, "10.244.1.1"+port, "127.0.0.1"+port, "192.0.2.12"+port, "10.96.0.10"+port)
		}
	}
	return to
}

// hold fails unless the rules of p yield the outcomes of p for all packets.
func hold(t *testing.T, p *ir.Program, from, to []string) {
	t.Helper()
	rules := NewEvaluator(iptables.Lower(p), sim.OwnOf(p.Node.HasAddr))
	for _, src := range from {
		for _, dst := range to {
			pkt, err := sim.ParsePacket(src, dst)
			if err != nil {
				t.Fatal(err)
			}
			if pkt.Dst.IsLoopback() && !pkt.Src.IsLoopback() {
				continue // impossible in any kernel, and dropped by KUBE-FIREWALL
			}
			want, got := sim.Trace(p, pkt), rules.Outcome(pkt, nil)
			if !got.Equal(want) {
				t.Errorf("%s to %s: rules say %s, want %s", src, dst, got, want)
			}
		}
	}
}

func TestEvalIsTraceInTrees(t *testing.T) {
	for _, family := range []ir.Family{ir.IPv4, ir.IPv6} {
		p := iptest.Many(family, 2000, 2)
		node := "192.0.2.11"
		if family == ir.IPv6 {
			node = "2001:db8:0:1::11"
		}
		p.Node.Addrs = []netip.Addr{netip.MustParseAddr(node)}
		r := iptables.Lower(p)
		services := r.Nat.Chains[slices.IndexFunc(r.Nat.Chains, func(c iptables.Chain) bool { return c.Name == iptables.ChainServices })]
		if len(services.Rules) > 17 {
			t.Errorf("%s: KUBE-SERVICES has %d rules, so it is no tree", family, len(services.Rules))
		}
		rules := NewEvaluator(r, sim.OwnOf(p.Node.HasAddr))
		random := rand.New(rand.NewPCG(3, uint64(family)))
		for range 300 {
			s := &p.Services[random.IntN(len(p.Services))]
			f := &s.Frontends[random.IntN(len(s.Frontends))]
			pkt := sim.Packet{Src: p.Node.Addrs[0], Dst: f.Match.Addr, Protocol: ir.TCP, Port: f.Match.Port + uint16(random.IntN(8)/7)}
			if f.Match.IsNodePort() {
				pkt.Dst = p.Node.Addrs[0]
			}
			if len(s.Pools) > 0 && random.IntN(2) == 0 {
				pkt.Src, pkt.In = s.Pools[0].Backends[random.IntN(2)].AddrPort.Addr(), "cni0"
			}
			if want, got := sim.Trace(p, pkt), rules.Outcome(pkt, nil); !got.Equal(want) {
				t.Errorf("%v: rules say %s, want %s", pkt, got, want)
			}
		}
	}
}

// A mark on a leaving packet is attributed to the chain whose rule set it.
func TestLeavingMarkNamesItsChain(t *testing.T) {
	const saved = "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -j MARK --or-mark 0x4000\nCOMMIT\n"
	r, err := parse.Parse(ir.IPv4, saved)
	if err != nil {
		t.Fatal(err)
	}
	own := sim.NewOwn(netip.MustParsePrefix("127.0.0.0/8"), nil)
	own.Mark = 0x4000
	pkt, err := sim.ParsePacket("10.244.1.20@cni0", "10.244.1.10:8080")
	if err != nil {
		t.Fatal(err)
	}
	var cuts sim.Cuts
	NewEvaluator(r, own).Outcome(pkt, &cuts)
	want := "table filter, chain KUBE-FORWARD: a packet leaves with the mark 0x4000, which others may see"
	if got := cuts.Doubts(); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFrontendsOfAServicePortShareChains(t *testing.T) {
	p := irtest.Program(ir.ModeIPTables)
	ranges := []ir.SourceRange{{Prefix: netip.MustParsePrefix("198.51.100.0/24")}}
	web := &p.Services[len(p.Services)-1]
	for i := range web.Frontends {
		if f := &web.Frontends[i]; f.Kind == ir.LoadBalancer {
			f.SourceRanges = ranges
		}
	}
	var got []string
	for _, c := range iptables.LowerService(p.Family, &p.Node, web).Chains {
		got = append(got, c.Name)
	}
	want := []string{"KUBE-SVC-LOLE4ISW44XBNF3G", "KUBE-EXT-LOLE4ISW44XBNF3G", "KUBE-FW-LOLE4ISW44XBNF3G"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
	hold(t, p, sources, destinations(p))

	for i := range web.Frontends { // routes that differ from its siblings', which no compiler creates but the IR allows
		if f := &web.Frontends[i]; f.Kind == ir.NodePort {
			f.Routes = []ir.Route{{From: ir.ThisNode, Pool: f.Routes[0].Pool}}
			f.Fallback = ir.Drop
		}
	}
	hold(t, p, sources, destinations(p))
}

package iptables

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render"
)

// A large cluster has hundreds of thousands of rules, in memory twice.
func TestRuleSize(t *testing.T) {
	if size := unsafe.Sizeof(Rule{}); size > 256 {
		t.Errorf("a Rule has %d bytes, want at most 256", size)
	}
}

// Each match is written, read again as it was, and asked of a packet from
// 10.244.1.10 by cni0 to 10.96.0.10:80, an address of the node.
func TestMatches(t *testing.T) {
	prefix := netip.MustParsePrefix
	frontend := ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.TCP, Port: 80}
	other := frontend
	other.Port = 81
	tests := []struct {
		rule  Rule
		text  string
		holds bool
	}{
		{Rule{Src: prefix("10.244.0.0/16")}, "-s 10.244.0.0/16", true},
		{Rule{Not: Src, Src: prefix("10.244.0.0/16")}, "! -s 10.244.0.0/16", false},
		{Rule{Dst: prefix("127.0.0.0/8")}, "-d 127.0.0.0/8", false},
		{Rule{In: "cni0"}, "-i cni0", true},
		{Rule{Not: In, In: "cni+"}, "! -i cni+", false},
		{Rule{Not: In, In: "eth0"}, "! -i eth0", true},
		{Rule{Protocol: ir.SCTP}, "-p sctp", false},
		{Rule{Protocol: ir.TCP, Ports: Port(80)}, "-p tcp -m tcp --dport 80", true},
		{Rule{Protocol: ir.UDP, Ports: Port(80)}, "-p udp -m udp --dport 80", false},
		{Rule{Rare: InSet{"KUBE-A", "dst,dst"}}, "-m set --match-set KUBE-A dst,dst", true},
		{Rule{Rare: InSet{"KUBE-B", "dst"}}, "-m set --match-set KUBE-B dst", false},
		{Rule{DstLocal: true}, "-m addrtype --dst-type LOCAL", true},
		{Rule{SrcLocal: true}, "-m addrtype --src-type LOCAL", false},
		{Rule{Not: SrcType, SrcLocal: true}, "-m addrtype ! --src-type LOCAL", true},
		{Rule{Not: Bridged}, "-m physdev ! --physdev-is-in", true},
		{Rule{Mark: Mark{0x4000, 0x4000}}, "-m mark --mark 0x004000/0x004000", false},
		{Rule{Not: MarkMatch, Mark: Mark{0x4000, 0x4000}}, "-m mark ! --mark 0x004000/0x004000", true},
		{Rule{States: New}, "-m conntrack --ctstate NEW", true},
		{Rule{States: Related | Established}, "-m conntrack --ctstate RELATED,ESTABLISHED", false},
		{Rule{Rare: Balanced(frontend)}, "-m ipvs --vaddr 10.96.0.10 --vproto tcp --vport 80", true},
		{Rule{Rare: Balanced(other)}, "-m ipvs --vaddr 10.96.0.10 --vproto tcp --vport 81", false},
		{Rule{Rare: Counted{"accepted"}}, "-m nfacct --nfacct-name accepted", true},
		{Rule{Protocol: ir.TCP, Ports: Port(80), Not: SrcType | Bridged, SrcLocal: true, States: New, Comment: "a/b", CommentLast: true},
			`-p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -m comment --comment "a/b"`, true},
	}
	node := func(a netip.Addr) bool { return a == frontend.Addr }
	sets := func(p *Packet, in InSet) bool { return in == InSet{"KUBE-A", "dst,dst"} && p.Port == 80 }
	for _, tt := range tests {
		tt.rule.Target = Drop
		if got, want := string(tt.rule.Append(nil, ir.IPv4)), tt.text+" -j DROP"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := parseRule(ir.IPv4, tt.text+" -j DROP"); !got.Equal(&tt.rule) {
			t.Errorf("%s: read as %+v", tt.text, got)
		}
		r := &Ruleset{Family: ir.IPv4, Filter: Table{Name: "filter", Jumps: []BuiltInJump{{Chain: "INPUT", Rule: tt.rule}}}}
		p := Packet{Balanced: frontend, Packet: sim.Packet{
			Src: netip.MustParseAddr("10.244.1.10"), Dst: frontend.Addr, Protocol: ir.TCP, Port: 80, In: "cni0",
		}}
		ends := r.Walker(sim.OwnOf(node), sets).Filter("INPUT", p)
		if len(ends) != 1 || (ends[0].Fate == Drop) != tt.holds {
			t.Errorf("%s: got %+v, want that it holds: %v", tt.text, ends, tt.holds)
		}
		if ends = r.Walker(sim.OwnOf(node), nil).Filter("INPUT", p); tt.rule.Rare == (InSet{"KUBE-A", "dst,dst"}) && ends[0].Fate == Drop {
			t.Errorf("%s: holds where there are no sets", tt.text)
		}
	}
}

// What the tools print differs from what they are given, and what looks like
// one of our matches and is not is left as it is.
func TestParseRare(t *testing.T) {
	at := Balanced{Addr: netip.MustParseAddr("203.0.113.14"), Protocol: ir.TCP, Port: 80}
	for text, want := range map[string]Rule{
		"-m ipvs --vproto 6 --vaddr 203.0.113.14 --vport 80 -j DROP": {Rare: at, Target: Drop},
		"-j REDIRECT --to-ports 20091":                               {Target: Redirect, To: netip.AddrPortFrom(netip.Addr{}, 20091)},
	} {
		if got := parseRule(ir.IPv4, text); !got.Equal(&want) {
			t.Errorf("%s: got %+v", text, got)
		}
	}
	for _, text := range []string{
		"-m ipvs --ipvs -j DROP",
		"-m ipvs --vproto 6 --vport 80 -j DROP",
		"-m ipvs --vproto 1 --vaddr 203.0.113.14 --vport 80 -j DROP",
		"-m ipvs ! --vaddr 203.0.113.14 --vproto 6 --vport 80 -j DROP",
		"-m ipvs --vaddr 2001:db8::1 --vproto 6 --vport 80 -j DROP",
		"-m set ! --match-set KUBE-A dst -j DROP",
		"-m set --match-set KUBE-A dst -m set --match-set KUBE-B dst -j DROP",
		"-m set --match-set KUBE-A dst --return-nomatch -j DROP",
		"-m set --match-set KUBE-A dst -m ipvs --vproto 6 --vaddr 203.0.113.14 --vport 80 -j DROP",
		"-m physdev --physdev-is-in -j DROP",
		"-j REDIRECT",
		"-j REDIRECT --to-ports 1-2",
		"-j REDIRECT --to-ports 1 --random",
		"-j DNAT --to-ports 1",
	} {
		if got := parseRule(ir.IPv4, text); got.Raw != text {
			t.Errorf("%s: read as %+v", text, got)
		}
	}
}

// Rules that others built tell why they are there, those in built-in chains included.
func TestExplainRuleset(t *testing.T) {
	f := ir.Frontend{
		Match:  ir.Match{Protocol: ir.TCP, Port: 30080},
		Port:   ir.ServicePort{Service: ir.Name{Namespace: "default", Name: "web"}},
		Origin: ir.Origin{Object: "Service default/web"},
	}
	r := &Ruleset{Family: ir.IPv6, Filter: Table{Name: "filter",
		Chains: []Chain{{ChainNodePortNonLocal, []Rule{Rule{Protocol: ir.TCP, Ports: Port(20091), Target: Accept}.For(&f)}}},
		Jumps:  []BuiltInJump{{Chain: "INPUT", Rule: Rule{Target: Jump, Chain: ChainNodePortNonLocal}.Because(&ir.Origin{Object: "config"})}},
	}}
	var got []string
	each := func(e render.Entry) bool { got = append(got, e.String()+" # "+e.Origin.Object); return len(got) < 2 }
	if r.Explain(each) {
		t.Error("went on after it was stopped")
	}
	want := []string{
		"ip6tables filter KUBE-NODEPORT-NON-LOCAL 1: -p tcp -m tcp --dport 20091 -j ACCEPT # Service default/web",
		"ip6tables filter INPUT 1: -j KUBE-NODEPORT-NON-LOCAL # config",
	}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %q, want %q", got, want)
	}
}

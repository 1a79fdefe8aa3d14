package eval

import (
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/iptables/parse"
)

// Each match is written, parsed again unchanged, and evaluated for a packet from
// 10.244.1.10 on cni0 to 10.96.0.10:80, an address of the node.
func TestMatches(t *testing.T) {
	prefix := netip.MustParsePrefix
	frontend := ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.TCP, Port: 80}
	other := frontend
	other.Port = 81
	tests := []struct {
		rule  iptables.Rule
		text  string
		holds bool
	}{
		{iptables.Rule{Src: prefix("10.244.0.0/16")}, "-s 10.244.0.0/16", true},
		{iptables.Rule{Not: iptables.Src, Src: prefix("10.244.0.0/16")}, "! -s 10.244.0.0/16", false},
		{iptables.Rule{Dst: prefix("127.0.0.0/8")}, "-d 127.0.0.0/8", false},
		{iptables.Rule{In: "cni0"}, "-i cni0", true},
		{iptables.Rule{Not: iptables.In, In: "cni+"}, "! -i cni+", false},
		{iptables.Rule{Not: iptables.In, In: "eth0"}, "! -i eth0", true},
		{iptables.Rule{Protocol: ir.SCTP}, "-p sctp", false},
		{iptables.Rule{Protocol: ir.TCP, Ports: iptables.Port(80)}, "-p tcp -m tcp --dport 80", true},
		{iptables.Rule{Protocol: ir.UDP, Ports: iptables.Port(80)}, "-p udp -m udp --dport 80", false},
		{iptables.Rule{Rare: iptables.InSet{Set: "KUBE-A", Fields: "dst,dst"}}, "-m set --match-set KUBE-A dst,dst", true},
		{iptables.Rule{Rare: iptables.InSet{Set: "KUBE-B", Fields: "dst"}}, "-m set --match-set KUBE-B dst", false},
		{iptables.Rule{DstLocal: true}, "-m addrtype --dst-type LOCAL", true},
		{iptables.Rule{SrcLocal: true}, "-m addrtype --src-type LOCAL", false},
		{iptables.Rule{Not: iptables.SrcType, SrcLocal: true}, "-m addrtype ! --src-type LOCAL", true},
		{iptables.Rule{Not: iptables.Bridged}, "-m physdev ! --physdev-is-in", true},
		{iptables.Rule{Mark: iptables.Mark{Value: 0x4000, Mask: 0x4000}}, "-m mark --mark 0x004000/0x004000", false},
		{iptables.Rule{Not: iptables.MarkMatch, Mark: iptables.Mark{Value: 0x4000, Mask: 0x4000}}, "-m mark ! --mark 0x004000/0x004000", true},
		{iptables.Rule{States: iptables.New}, "-m conntrack --ctstate NEW", true},
		{iptables.Rule{States: iptables.Related | iptables.Established}, "-m conntrack --ctstate RELATED,ESTABLISHED", false},
		{iptables.Rule{Rare: iptables.Balanced(frontend)}, "-m ipvs --vaddr 10.96.0.10 --vproto tcp --vport 80", true},
		{iptables.Rule{Rare: iptables.Balanced(other)}, "-m ipvs --vaddr 10.96.0.10 --vproto tcp --vport 81", false},
		{iptables.Rule{Rare: iptables.Counted{Name: "accepted"}}, "-m nfacct --nfacct-name accepted", true},
		{iptables.Rule{Protocol: ir.TCP, Ports: iptables.Port(80), Not: iptables.SrcType | iptables.Bridged, SrcLocal: true, States: iptables.New, Comment: "a/b", CommentLast: true},
			`-p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -m comment --comment "a/b"`, true},
	}
	node := func(a netip.Addr) bool { return a == frontend.Addr }
	sets := func(p *Packet, in iptables.InSet) bool {
		return in == iptables.InSet{Set: "KUBE-A", Fields: "dst,dst"} && p.Port == 80
	}
	for _, tt := range tests {
		tt.rule.Target = iptables.Drop
		if got, want := string(tt.rule.Append(nil, ir.IPv4)), tt.text+" -j DROP"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		read, err := parse.Parse(ir.IPv4, "*filter\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES "+tt.text+" -j DROP\nCOMMIT\n")
		if err != nil || !read.Filter.Chains[0].Rules[0].Equal(&tt.rule) {
			t.Errorf("%s: %v, read as %+v", tt.text, err, read)
		}
		r := &iptables.Ruleset{Family: ir.IPv4, Filter: iptables.Table{Name: "filter", Jumps: []iptables.BuiltInJump{{Chain: "INPUT", Rule: tt.rule}}}}
		p := Packet{Balanced: frontend, Packet: sim.Packet{
			Src: netip.MustParseAddr("10.244.1.10"), Dst: frontend.Addr, Protocol: ir.TCP, Port: 80, In: "cni0",
		}}
		ends := NewWalker(r, sim.OwnOf(node), sets).Filter("INPUT", p)
		if len(ends) != 1 || (ends[0].Fate == iptables.Drop) != tt.holds {
			t.Errorf("%s: got %+v, want that it holds: %v", tt.text, ends, tt.holds)
		}
		if ends = NewWalker(r, sim.OwnOf(node), nil).Filter("INPUT", p); tt.rule.Rare == (iptables.InSet{Set: "KUBE-A", Fields: "dst,dst"}) && ends[0].Fate == iptables.Drop {
			t.Errorf("%s: holds where there are no sets", tt.text)
		}
	}
}

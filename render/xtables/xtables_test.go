package xtables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render"
)

var (
	src     = netip.MustParseAddr("10.244.1.10")
	dst     = netip.MustParseAddr("10.96.0.10")
	backend = netip.MustParseAddrPort("10.244.2.10:8080")
)

func packet() *Packet {
	return &Packet{
		Packet: sim.Packet{Src: src, Dst: dst, Protocol: ir.TCP, Port: 80, In: "cni0"},
		Local:  func(a netip.Addr) bool { return a == dst },
		InSet: func(p *Packet, set, fields string) bool {
			return set == "KUBE-A" && fields == "dst,dst" && p.Port == 80
		},
	}
}

func TestMatches(t *testing.T) {
	frontend := ir.Match{Addr: dst, Protocol: ir.TCP, Port: 80}
	tests := []struct {
		match Match
		text  string
		holds bool
	}{
		{Source{Prefix: netip.MustParsePrefix("10.244.0.0/16")}, "-s 10.244.0.0/16", true},
		{Source{Prefix: netip.MustParsePrefix("10.244.0.0/16"), Not: true}, "! -s 10.244.0.0/16", false},
		{Destination(netip.MustParsePrefix("127.0.0.0/8")), "-d 127.0.0.0/8", false},
		{Input{Interface: "cni0"}, "-i cni0", true},
		{Input{Interface: "cni+", Not: true}, "! -i cni+", false},
		{Input{Interface: "eth0", Not: true}, "! -i eth0", true},
		{Protocol(ir.SCTP), "-p sctp", false},
		{Port{ir.TCP, 80}, "-p tcp -m tcp --dport 80", true},
		{Port{ir.UDP, 80}, "-p udp -m udp --dport 80", false},
		{InSet{"KUBE-A", "dst,dst"}, "-m set --match-set KUBE-A dst,dst", true},
		{InSet{"KUBE-B", "dst"}, "-m set --match-set KUBE-B dst", false},
		{AddrType{}, "-m addrtype --dst-type LOCAL", true},
		{AddrType{Source: true}, "-m addrtype --src-type LOCAL", false},
		{AddrType{Source: true, Not: true}, "-m addrtype ! --src-type LOCAL", true},
		{NotBridged{}, "-m physdev ! --physdev-is-in", true},
		{Marked{Mark: 0x4000}, "-m mark --mark 0x4000/0x4000", false},
		{Marked{Mark: 0x4000, Not: true}, "-m mark ! --mark 0x4000/0x4000", true},
		{State("NEW"), "-m conntrack --ctstate NEW", true},
		{State("RELATED,ESTABLISHED"), "-m conntrack --ctstate RELATED,ESTABLISHED", false},
		{Balanced(frontend), "-m ipvs --vaddr 10.96.0.10 --vproto tcp --vport 80", false},
	}
	for _, tt := range tests {
		if got := string(tt.match.Append(nil)); got != " "+tt.text {
			t.Errorf("got %q, want %q", got, " "+tt.text)
		}
		if got := tt.match.Holds(packet()); got != tt.holds {
			t.Errorf("%s holds: %v, want %v", tt.text, got, tt.holds)
		}
	}
	p := packet()
	p.Balanced, p.In, p.InSet = frontend, "", nil
	for m, want := range map[Match]bool{
		Balanced(frontend): true, Input{Interface: "cni+"}: false, Input{Interface: "cni+", Not: true}: true, InSet{"KUBE-A", "dst,dst"}: false,
	} {
		if got := m.Holds(p); got != want {
			t.Errorf("%v of the node's packet: %v, want %v", m, got, want)
		}
	}
}

// tables jump from PREROUTING to A, which marks and goes on to B.
func tables(last Target) []Table {
	do := func(a Action) Target { return Target{Action: a} }
	return []Table{{Name: "nat", Chains: []Chain{
		{Name: "KUBE-A", Rules: []Rule{
			{Target: Target{Action: SetMark, Mark: 0x4000}, Comment: `say "a"`, Origin: ir.Origin{Object: "config"}},
			{Matches: []Match{Protocol(ir.UDP)}, Target: do(Drop)},
			{Target: JumpTo("KUBE-B")},
			{Target: last},
		}},
		{Name: "KUBE-B", Rules: []Rule{
			{Matches: []Match{Marked{Mark: 0x4000}}, Target: do(Return)},
			{Target: do(Drop)},
		}},
		{Name: "PREROUTING", BuiltIn: true, Rules: []Rule{
			{Matches: To(ir.Match{Addr: dst, Protocol: ir.TCP, Port: 80}), Target: JumpTo("KUBE-A")},
			{Target: do(Accept)},
		}},
	}}}
}

func TestWrite(t *testing.T) {
	for _, tt := range []struct {
		last Target
		text string
	}{
		{Target{Action: Reject}, "REJECT"},
		{Target{Action: ClearMark, Mark: 0x4000}, "MARK --xor-mark 0x4000"},
		{Target{Action: Masquerade}, "MASQUERADE"},
		{Target{Action: Masquerade, Random: true}, "MASQUERADE --random-fully"},
		{Target{Action: DNAT, To: backend}, "DNAT --to-destination 10.244.2.10:8080"},
		{Target{Action: Redirect, To: backend}, "REDIRECT --to-ports 8080"},
	} {
		var b strings.Builder
		if err := Write(&b, tables(tt.last)); err != nil {
			t.Fatal(err)
		}
		want := `*nat
:KUBE-A - [0:0]
:KUBE-B - [0:0]
-A KUBE-A -m comment --comment "say \"a\"" -j MARK --or-mark 0x4000
-A KUBE-A -p udp -j DROP
-A KUBE-A -j KUBE-B
-A KUBE-A -j ` + tt.text + `
-A KUBE-B -m mark --mark 0x4000/0x4000 -j RETURN
-A KUBE-B -j DROP
-I PREROUTING -j ACCEPT
-I PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-A
COMMIT
`
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestWalk(t *testing.T) {
	for _, tt := range []struct {
		last  Target
		end   Action
		check func(*Packet) bool
	}{
		{Target{Action: Reject}, Reject, func(p *Packet) bool { return p.Mark == 0x4000 }},
		{Target{Action: ClearMark, Mark: 0x4000}, Accept, func(p *Packet) bool { return p.Mark == 0 }}, // goes on in PREROUTING
		{Target{Action: Masquerade}, Masquerade, func(p *Packet) bool { return p.Masquerade }},
		{Target{Action: DNAT, To: backend}, DNAT, func(p *Packet) bool { return p.Dst == backend.Addr() && p.Port == 8080 && !p.Redirected }},
		{Target{Action: Redirect, To: backend}, Redirect, func(p *Packet) bool { return p.Dst == dst && p.Port == 8080 && p.Redirected }},
	} {
		p := packet()
		if end := p.Walk(tables(tt.last), "nat", "PREROUTING"); end != tt.end || !tt.check(p) {
			t.Errorf("%v: ended with %d, want %d; packet %+v", tt.last, end, tt.end, p.Packet)
		}
	}
	if end := packet().Walk(tables(Target{}), "nat", "OUTPUT"); end != Return {
		t.Errorf("a chain that is not there ended with %d", end)
	}
	if end := packet().Walk(nil, "filter", "INPUT"); end != Return {
		t.Errorf("a table that is not there ended with %d", end)
	}
}

func TestExplain(t *testing.T) {
	var got []string
	all := func(e render.Entry) bool { got = append(got, e.String()+" # "+e.Origin.Object); return len(got) < 3 }
	if Explain(ir.IPv6, tables(Target{}), all) {
		t.Error("went on after it was stopped")
	}
	want := []string{
		`ip6tables nat KUBE-A 1: -m comment --comment "say \"a\"" -j MARK --or-mark 0x4000 # config`,
		"ip6tables nat KUBE-A 2: -p udp -j DROP # ",
		"ip6tables nat KUBE-A 3: -j KUBE-B # ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

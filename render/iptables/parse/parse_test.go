package parse

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/iptables/iptest"
)

// differ compares two Rulesets regardless of the order of chains.
func differ(want, got *iptables.Ruleset) string {
	for _, r := range []*iptables.Ruleset{want, got} {
		for _, t := range r.Tables() {
			slices.SortFunc(t.Chains, func(a, b iptables.Chain) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return cmp.Diff(want, got, cmp.Comparer(func(a, b iptables.Rule) bool { return a.Equal(&b) }), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(iptables.BuiltInJump{}, "Text"))
}

func textOf(r *iptables.Ruleset) string {
	var b strings.Builder
	r.Write(&b) // never fails
	return b.String()
}

func TestParseIsTheInverseOfWrite(t *testing.T) {
	for _, p := range []*ir.Program{iptest.Both().IPv4, iptest.Both().IPv6, iptest.Many(ir.IPv4, 300, 5), iptest.Many(ir.IPv6, 300, 5)} {
		want := iptables.Lower(p)
		got, err := Parse(p.Family, textOf(want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := differ(want, got); diff != "" {
			t.Errorf("(-lowered +parsed):\n%s", diff)
		}
	}
}

// A pipe delivers a text in pieces of any size.
func TestParseInPieces(t *testing.T) {
	saved := textOf(iptables.Lower(iptest.Many(ir.IPv4, 100, 3)))
	want, err := Parse(ir.IPv4, saved)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 7, 4096} {
		p := NewParser(ir.IPv4)
		for piece := range slices.Chunk([]byte(saved), size) {
			if n, err := p.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("wrote %d of %d bytes: %v", n, len(piece), err)
			}
			clear(piece) // the writer reuses it
		}
		got, err := p.Ruleset()
		if err != nil {
			t.Fatal(err)
		}
		if diff := differ(want, got); diff != "" {
			t.Errorf("in pieces of %d bytes (-whole +pieces):\n%s", size, diff)
		}
	}
	p := NewParser(ir.IPv4)
	for _, piece := range []string{"*nat\n-A KUBE-", "SERVICES -j ACCEPT\n", "*nat\n"} {
		p.Write([]byte(piece))
	}
	if _, err := p.Ruleset(); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
		t.Errorf("an undeclared chain: got %v, want an error of line 2", err)
	}
}

func TestParseWhatTheKernelHolds(t *testing.T) {
	sets := map[string]ir.Programs{"one of each": iptest.Both(), "many": ir.NewPrograms(iptest.Many(ir.IPv4, 100, 40), iptest.Many(ir.IPv6, 100, 40))}
	for name, programs := range sets {
		for _, variant := range variants {
			t.Run(name+"/"+variant, func(t *testing.T) {
				dir, _ := write(t, programs)
				for _, p := range ir.Present(programs) {
					tool := iptables.Tool(p.Family)
					saved := inNamespace(t, variant, dir, tool+"-restore "+tool+".rules; "+tool+"-save")
					got, err := Parse(p.Family, saved)
					if err != nil {
						t.Fatal(err)
					}
					want := iptables.Lower(p)
					for _, table := range want.Tables() { // INPUT, FORWARD and OUTPUT each keep their order; the order among them depends on the tool
						sortJumps(table)
					}
					for _, table := range got.Tables() {
						sortJumps(table)
					}
					if diff := differ(want, got); diff != "" {
						t.Errorf("%s (-wanted +kernel):\n%s", tool, diff)
					}
				}
			})
		}
	}
}

func sortJumps(t *iptables.Table) {
	slices.SortStableFunc(t.Jumps, func(a, b iptables.BuiltInJump) int { return strings.Compare(a.Chain, b.Chain) })
}

// The tools print some rules in another form than their input. Rules that
// resemble ours but differ are kept unchanged.
func TestParseRare(t *testing.T) {
	at := iptables.Balanced{Addr: netip.MustParseAddr("203.0.113.14"), Protocol: ir.TCP, Port: 80}
	for text, want := range map[string]iptables.Rule{
		"-m ipvs --vproto 6 --vaddr 203.0.113.14 --vport 80 -j DROP": {Rare: at, Target: iptables.Drop},
		"-j REDIRECT --to-ports 20091":                               {Target: iptables.Redirect, To: netip.AddrPortFrom(netip.Addr{}, 20091)},
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

func TestParseLeavesOthersAlone(t *testing.T) {
	const saved = `# a comment
*mangle
:KUBE-IPTABLES-HINT - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "not KUBE-SERVICES" -j DOCKER
-A DOCKER -j KUBE-SERVICES
-A KUBE-SERVICES -m nfacct --nfacct-name x -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp --sport 1 -j DNAT --to-destination 10.0.0.1:80
-A KUBE-SEP-AAAAAAAAAAAAAAAA ! -p tcp -j ACCEPT
-A KUBE-SEP-AAAAAAAAAAAAAAAA -m statistic --mode random --probability 0.30000000019 -j ACCEPT
-A KUBE-SEP-AAAAAAAAAAAAAAAA -m comment --comment "a \"b\" \\ c"
COMMIT
`
	got, err := Parse(ir.IPv4, saved)
	if err != nil {
		t.Fatal(err)
	}
	want := &iptables.Ruleset{Family: ir.IPv4, Filter: iptables.Table{Name: "filter"}, Nat: iptables.Table{Name: "nat",
		Jumps:  []iptables.BuiltInJump{{Chain: "PREROUTING", Rule: iptables.Rule{Comment: "kubernetes service portals", Target: iptables.Jump, Chain: "KUBE-SERVICES"}}},
		Pinned: []string{"KUBE-SERVICES"},
		Chains: []iptables.Chain{
			{Name: "KUBE-SERVICES", Rules: []iptables.Rule{{Rare: iptables.Counted{Name: "x"}, Target: iptables.Jump, Chain: "KUBE-SEP-AAAAAAAAAAAAAAAA"}}},
			{Name: "KUBE-SEP-AAAAAAAAAAAAAAAA", Rules: []iptables.Rule{
				{Raw: "-p tcp -m tcp --sport 1 -j DNAT --to-destination 10.0.0.1:80", Target: iptables.DNAT},
				{Raw: "! -p tcp -j ACCEPT", Target: iptables.Accept},
				{Raw: "-m statistic --mode random --probability 0.30000000019 -j ACCEPT", Target: iptables.Accept},
				{Comment: `a "b" \ c`},
			}},
		}}}
	if diff := differ(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES ! -s 10.0.0.0/8 -p tcp -m comment --comment \"a/b c\" -m tcp --dport 1:2 -j KUBE-SVC-A\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n")
	f.Add("*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -m statistic --mode random --probability 0.33 -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n")
	f.Add("*nat\n:KUBE-SEP-A - [0:0]\n-A KUBE-SEP-A -m recent --rcheck --seconds 1 --reap --name A --mask 255.255.255.255 --rsource -j MARK --xor-mark 0x4000\n")
	f.Fuzz(func(t *testing.T, saved string) {
		first, err := Parse(ir.IPv4, saved)
		if err != nil {
			return
		}
		second, err := Parse(ir.IPv4, textOf(first))
		if err != nil {
			t.Fatalf("does not read what it wrote: %v", err)
		}
		if diff := differ(first, second); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	})
}

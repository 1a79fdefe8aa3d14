package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
)

// differ compares two Rulesets but for the order of chains.
func differ(want, got *Ruleset) string {
	for _, r := range []*Ruleset{want, got} {
		for _, t := range r.Tables() {
			slices.SortFunc(t.Chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return cmp.Diff(want, got, cmp.Comparer(func(a, b Rule) bool { return a.Equal(&b) }), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(BuiltInJump{}, "Text"))
}

func TestParseIsTheInverseOfWrite(t *testing.T) {
	for _, p := range []*ir.Program{both().IPv4, both().IPv6, many(ir.IPv4, 300, 5), many(ir.IPv6, 300, 5)} {
		want := Lower(p)
		got, err := Parse(p.Family, text(want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := differ(want, got); diff != "" {
			t.Errorf("(-lowered +parsed):\n%s", diff)
		}
	}
}

// A pipe gives a text in pieces, which end anywhere.
func TestParseInPieces(t *testing.T) {
	saved := text(Lower(many(ir.IPv4, 100, 3)))
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
			clear(piece) // it belongs to the writer
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
	sets := map[string]ir.Programs{"one of each": both(), "many": ir.NewPrograms(many(ir.IPv4, 100, 40), many(ir.IPv6, 100, 40))}
	for name, programs := range sets {
		for _, variant := range variants {
			t.Run(name+"/"+variant, func(t *testing.T) {
				dir, _ := write(t, programs)
				for _, p := range ir.Present(programs) {
					tool := Tool(p.Family)
					saved := inNamespace(t, variant, dir, tool+"-restore "+tool+".rules; "+tool+"-save")
					got, err := Parse(p.Family, saved)
					if err != nil {
						t.Fatal(err)
					}
					want := Lower(p)
					for _, table := range want.Tables() { // INPUT, FORWARD and OUTPUT each keep their order; which comes first is the tool's
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

func sortJumps(t *Table) {
	slices.SortStableFunc(t.Jumps, func(a, b BuiltInJump) int { return strings.Compare(a.Chain, b.Chain) })
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
	want := &Ruleset{Family: ir.IPv4, Filter: Table{Name: "filter"}, Nat: Table{Name: "nat",
		Jumps:  []BuiltInJump{{Chain: "PREROUTING", Rule: Rule{Comment: "kubernetes service portals", Target: Jump, Chain: "KUBE-SERVICES"}}},
		Pinned: []string{"KUBE-SERVICES"},
		Chains: []Chain{
			{"KUBE-SERVICES", []Rule{{Rare: Counted{"x"}, Target: Jump, Chain: "KUBE-SEP-AAAAAAAAAAAAAAAA"}}},
			{"KUBE-SEP-AAAAAAAAAAAAAAAA", []Rule{
				{Raw: "-p tcp -m tcp --sport 1 -j DNAT --to-destination 10.0.0.1:80", Target: DNAT},
				{Raw: "! -p tcp -j ACCEPT", Target: Accept},
				{Raw: "-m statistic --mode random --probability 0.30000000019 -j ACCEPT", Target: Accept},
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
		second, err := Parse(ir.IPv4, text(first))
		if err != nil {
			t.Fatalf("does not read what it wrote: %v", err)
		}
		if diff := differ(first, second); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	})
}

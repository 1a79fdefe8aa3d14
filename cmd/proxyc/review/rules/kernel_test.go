package rules

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/ipvs"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
	ipvsparse "github.com/proxyc/proxyc/render/ipvs/parse"
)

// savedIPVS returns what iptables-save, ipset save and ipvsadm -Sn print of rules in mode
// ipvs that are loaded into a kernel without others.
func savedIPVS(t testing.TB, r *ipvs.Ruleset) (rules, sets, servers string) {
	t.Helper()
	var texts [3]bytes.Buffer
	for i, write := range []func(*ipvs.Ruleset) error{
		func(r *ipvs.Ruleset) error { return r.WriteRules(&texts[0]) },
		func(r *ipvs.Ruleset) error { return r.WriteSets(&texts[1]) },
		func(r *ipvs.Ruleset) error { return r.WriteIPVS(&texts[2]) },
	} {
		if err := write(r); err != nil {
			t.Fatal(i, err)
		}
	}
	return asSaved(texts[0].String()), texts[1].String(), texts[2].String()
}

// asSaved converts input of iptables-restore into the output of iptables-save: rules that are
// inserted into built-in chains come first.
func asSaved(text string) string {
	var out []string
	front, table := map[string][]string{}, 0 // of the table; where its name stands, and one more
	for line := range strings.Lines(text) {
		switch chain, _, _ := strings.Cut(strings.TrimPrefix(line, "-I "), " "); {
		case strings.HasPrefix(line, "-I "):
			front[chain] = append([]string{"-A " + strings.TrimPrefix(line, "-I ")}, front[chain]...)
		case line == "COMMIT\n":
			var chains, rules []string
			for _, chain := range iptables.BuiltInChains() {
				chains = append(chains, ":"+chain+" ACCEPT [0:0]\n")
				rules = append(rules, front[chain]...)
			}
			out = append(append(slices.Insert(out, table, chains...), rules...), line)
			clear(front)
		default:
			out = append(out, line)
			if line[0] == '*' {
				table = len(out)
			}
		}
	}
	return strings.Join(out, "")
}

// heldIPVS reads them as what a kernel holds, rules of others included.
func heldIPVS(t testing.TB, f ir.Family, rules, sets, servers string) *ipvs.Ruleset {
	t.Helper()
	r := &ipvs.Ruleset{Family: f}
	var err error
	if r.Rules, _, err = iptparse.ParseWhole(f, rules); err != nil {
		t.Fatal(err)
	}
	if r.Elements, err = ipvsparse.ParseSets(f, sets); err != nil {
		t.Fatal(err)
	}
	if r.VirtualServers, err = ipvsparse.ParseServers(servers); err != nil {
		t.Fatal(err)
	}
	return r
}

// A packet meets the same rules in a kernel as in the loaded rules, and has the fate that the IR
// means.
func TestFollowIPVS(t *testing.T) {
	for n := range uint64(4) {
		r := reviewtest.New(11, n)
		for f, p := range ir.Present(r.World(ir.ModeIPVS).Compile(t)) {
			want := ipvs.Lower(p)
			saved, sets, servers := savedIPVS(t, want)
			held := heldIPVS(t, f, saved, sets, servers)
			wanted, inKernel := ipvseval.NewFollower(want, sim.OwnOfNode(p)), ipvseval.NewFollower(held, sim.OwnOfNode(p))
			evaluator, meaning := ipvseval.NewEvaluator(want, sim.OwnOfNode(p)), sim.NewEvaluator(p)
			for range 200 {
				pkt := r.Packet(p)
				a, b := wanted.Follow(pkt), inKernel.Follow(pkt)
				if !slices.EqualFunc(a.Met, b.Met, func(a, b sim.Met) bool { return a.Same(&b) }) {
					t.Fatalf("world %d: %v meets\n%v\nand in the kernel\n%v", n, pkt, a.Met, b.Met)
				}
				for _, o := range []sim.Outcome{a.Outcome, b.Outcome, evaluator.Outcome(pkt, nil)} {
					if !o.Equal(meaning.Outcome(pkt, nil)) || len(a.Unknown)+len(b.Unknown) > 0 {
						t.Fatalf("world %d: %v: %s, want %s, %q", n, pkt, o, meaning.Outcome(pkt, nil), b.Unknown)
					}
				}
			}
		}
	}
}

// Faults in a kernel are named: missing rules, extra rules, and foreign rules.
func TestFollowIPVSNamesFaults(t *testing.T) {
	p := reviewtest.Demo(t, ir.ModeIPVS).IPv4
	saved, sets, servers := savedIPVS(t, ipvs.Lower(p))
	outside := sim.Packet{Src: netip.MustParseAddr("192.0.2.77"), In: "eth0", Dst: netip.MustParseAddr("10.96.0.10"), Protocol: ir.TCP, Port: 80}
	node := sim.Packet{Src: p.Node.Addrs[0], Dst: outside.Dst, Protocol: ir.TCP, Port: 80}
	for _, tt := range []struct {
		name     string
		at, by   string // in one of the texts
		unbound  string // taken from kube-ipvs0
		packet   sim.Packet
		result   string
		because  []string
		doubt    string
		harmless bool
	}{
		{name: "real server removed", at: `^-a -t 10\.96\.0\.10:80 -r 10\.244\.1\.10:8080 .*\n`, packet: outside, result: "10.244.2.10:8080+snat",
			because: []string{"ipvs 10.96.0.10:80/tcp: missing or not reached: -a -t 10.96.0.10:80 -r 10.244.1.10:8080 -m -w 1"}},
		{name: "virtual server removed", at: `^-[aA] -t 10\.96\.0\.10:80 .*\n(-a .*\n)*`, packet: outside, result: "not proxied",
			because: []string{"ipvs 10.96.0.10:80/tcp: missing or not reached: -A -t 10.96.0.10:80 -s rr"}},
		{name: "real server added", at: `^-A -t 10\.96\.0\.10:80 .*\n`, by: "$0-a -t 10.96.0.10:80 -r 9.9.9.9:53 -m -w 1\n", packet: outside,
			result:  "9.9.9.9:53+snat 10.244.1.10:8080+snat 10.244.2.10:8080+snat",
			because: []string{"ipvs 10.96.0.10:80/tcp is not expected: -a -t 10.96.0.10:80 -r 9.9.9.9:53 -m -w 1"}},
		{name: "element removed", at: `^add KUBE-CLUSTER-IP 10\.96\.0\.10,tcp:80\n`, packet: outside, result: "rejected",
			because: []string{"ipset KUBE-CLUSTER-IP: missing or not reached: 10.96.0.10,tcp:80"}},
		{name: "address gone", unbound: "10.96.0.10", packet: outside, result: "10.96.0.10:80+snat",
			because: []string{"device kube-ipvs0: missing or not reached: 10.96.0.10"}},
		{name: "foreign drop", at: `^-A INPUT `, by: "-A INPUT -d 10.96.0.10/32 -j DROP\n$0", packet: outside, result: "dropped",
			because: []string{"table filter, chain INPUT, rule 1 (foreign) drops the packet: -d 10.96.0.10/32 -j DROP"}},
		{name: "foreign drop of a backend", at: `^-A OUTPUT -m comment --comment "kubernetes ipvs`, by: "-A OUTPUT -d 10.244.1.10/32 -j DROP\n$0", packet: outside,
			result:  "dropped (50%) or 10.244.2.10:8080+snat (50%)",
			because: []string{"table filter, chain OUTPUT, rule 1 (foreign) drops the packet: -d 10.244.1.10/32 -j DROP"}},
		{name: "foreign drop of a backend, for the node", at: `^-A OUTPUT -m comment --comment "kubernetes ipvs`, by: "-A OUTPUT -d 10.244.1.10/32 -j DROP\n$0", packet: node,
			result:  "dropped (50%) or 10.244.2.10:8080+snat (50%)",
			because: []string{"table filter, chain OUTPUT, rule 1 (foreign) drops the packet: -d 10.244.1.10/32 -j DROP"}},
		{name: "what others forward is not met", at: `^-A FORWARD `, by: "-A FORWARD -d 10.244.1.10/32 -j DROP\n$0", packet: outside, harmless: true},
		{name: "foreign translation", at: `^-A PREROUTING `, by: "-A PREROUTING -d 10.96.0.10/32 -j DNAT --to-destination 9.9.9.9:53\n$0", packet: outside, result: "9.9.9.9:53",
			because: []string{"table nat, chain PREROUTING, rule 1 (foreign) determines the result: -d 10.96.0.10/32 -j DNAT --to-destination 9.9.9.9:53"}},
		{name: "a diverted packet does not meet a foreign drop", at: `(?s)^-A OUTPUT -m comment --comment "kubernetes ipvs(.*?\n)-A PREROUTING `,
			by:     "-A OUTPUT -d 10.244.0.0/16 -j DROP\n-A OUTPUT -m comment --comment \"kubernetes ipvs$1-A PREROUTING -d 10.96.0.10/32 -j DNAT --to-destination 9.9.9.9:53\n-A PREROUTING ",
			packet: outside, result: "9.9.9.9:53",
			because: []string{"table nat, chain PREROUTING, rule 1 (foreign) determines the result: -d 10.96.0.10/32 -j DNAT --to-destination 9.9.9.9:53"}},
		{name: "two foreign drops", at: `^-A INPUT `, by: "-A INPUT -d 10.96.0.10/32 -j DROP\n-A INPUT -p tcp -j DROP\n$0", packet: outside, result: "dropped",
			because: []string{"table filter, chain INPUT, rule 1 (foreign) drops the packet: -d 10.96.0.10/32 -j DROP",
				"table filter, chain INPUT, rule 2 (foreign) drops the packet: -p tcp -j DROP"}},
		{name: "foreign masquerade", at: `^-A POSTROUTING `, by: "-A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE\n$0", result: "8.8.8.8:53+snat",
			packet:  sim.Packet{Src: outside.Src, In: "eth0", Dst: netip.MustParseAddr("8.8.8.8"), Protocol: ir.UDP, Port: 53},
			because: []string{"table nat, chain POSTROUTING, rule 1 (foreign) determines the result: -s 192.0.2.0/24 -j MASQUERADE"}},
		{name: "left to chance", at: `^-A KUBE-SERVICES `, by: "-A KUBE-SERVICES -m statistic --mode random --probability 0.5 -j RETURN\n$0", packet: outside, harmless: true,
			doubt: "table nat, chain PREROUTING: leaves to chance"},
		{name: "a set of others", at: `^-A KUBE-SERVICES `, by: "-A KUBE-SERVICES -m set --match-set evil src -j RETURN\n$0", packet: outside, harmless: true, doubt: "set evil"},
		{name: "all ports", at: `^-A -t 10\.96\.0\.10:80 .*\n(-a .*\n)*`, by: "-A -t 10.96.0.10:0 -s rr -p 60\n", packet: outside, result: "not proxied",
			doubt: "a virtual server takes the ports that no other does"},
		{name: "affinity", at: `^(-A -t 10\.96\.0\.10:80 -s rr)`, by: "$1 -p 60", packet: outside,
			result:  "10.244.1.10:8080+snat 10.244.2.10:8080+snat",
			because: []string{"ipvs 10.96.0.10:80/tcp: missing or not reached: -A -t 10.96.0.10:80 -s rr"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			texts := [3]string{saved, sets, servers}
			if tt.at != "" {
				reviewtest.Edit(t, texts[:], tt.at, tt.by)
			}
			held := heldIPVS(t, ir.IPv4, texts[0], texts[1], texts[2])
			held.Bound = map[netip.Addr]bool{}
			for _, e := range held.Addresses() {
				held.Bound[e.Addr] = e.Addr.String() != tt.unbound
			}
			want, err := expected(p, tt.packet)
			if err != nil {
				t.Fatal(err)
			}
			var f KernelTrace
			again := func(gone removed) (Path, error) {
				rest := *held
				rest.Rules = ipteval.Disarmed(held.Rules, gone.ofIPTables)
				return PathOf(ipvseval.NewFollower(&rest, sim.OwnOfNode(p)).Follow(tt.packet)), nil
			}
			if err := f.compare(want, PathOf(ipvseval.NewFollower(held, sim.OwnOfNode(p)).Follow(tt.packet)), again); err != nil {
				t.Fatal(err)
			}
			if tt.harmless {
				tt.result = want.Outcome.String()
			}
			if (f.Result == notKnown) != (tt.doubt != "") {
				t.Errorf("%s, although it is not understood: %q", f.Result, f.Unknown)
			}
			if !strings.HasPrefix(cmp.Or(f.Assumed, f.Result), tt.result) || !slices.Equal(f.Causes, tt.because) && tt.doubt == "" || (f.Causes == nil) != tt.harmless && tt.doubt == "" {
				t.Errorf("%s because of %q, want %s because of %q", f.Result, f.Causes, tt.result, tt.because)
			}
			if got := strings.Join(f.Unknown, "\n"); !strings.Contains(got, tt.doubt) || (tt.doubt == "") != (got == "") {
				t.Errorf("not understood: %q, want %q", f.Unknown, tt.doubt)
			}
		})
	}
}

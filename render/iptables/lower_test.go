package iptables

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/iptables/iptest"
)

// lines returns the rules of one chain as text.
func lines(r *Ruleset, table, chain string) []string {
	for _, t := range r.Tables() {
		for _, c := range t.Chains {
			if t.Name == table && c.Name == chain {
				var out []string
				for i := range c.Rules {
					out = append(out, string(c.Rules[i].Append(nil, r.Family)))
				}
				return out
			}
		}
	}
	return nil
}

// The chain names of a cluster's first Services, which exist on every Kubernetes
// node.
func TestChainNames(t *testing.T) {
	tests := []struct {
		namespace, name, port string
		protocol              ir.Protocol
		want                  string
	}{
		{"default", "kubernetes", "https", ir.TCP, "KUBE-SVC-NPX46M4PTMTKRN6Y"},
		{"kube-system", "kube-dns", "dns", ir.UDP, "KUBE-SVC-TCOU7JCQXEZGVUNU"},
		{"kube-system", "kube-dns", "dns-tcp", ir.TCP, "KUBE-SVC-ERIFXISQEP7F7OF4"},
		{"kube-system", "kube-dns", "metrics", ir.TCP, "KUBE-SVC-JD5MR3NA4I4DYORP"},
	}
	for _, tt := range tests {
		pool := ir.Pool{Port: ir.ServicePort{Service: ir.Name{Namespace: tt.namespace, Name: tt.name}, Port: tt.port, Protocol: tt.protocol}}
		if got := poolChain(&pool); got != tt.want {
			t.Errorf("%s %s: got %s, want %s", pool.Port, tt.protocol, got, tt.want)
		}
	}
}

// text returns the written form of the Ruleset.
func text(r *Ruleset) string {
	var b bytes.Buffer
	r.Write(&b) // a Buffer never fails
	return b.String()
}

func TestSharesAreEqual(t *testing.T) {
	p := iptest.Many(ir.IPv4, 2, 4)
	want := []string{
		`! -s 10.128.0.0/9 -d 10.0.0.2/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ`,
		"-p tcp -m statistic --mode random --probability 0.2500000000 -j DNAT --to-destination 10.128.0.1:8080",
		"-p tcp -m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.128.0.2:8080",
		"-p tcp -m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.128.0.3:8080",
		"-p tcp -j DNAT --to-destination 10.128.0.4:8080",
	}
	pool := &p.Services[1].Pools[0]
	if diff := cmp.Diff(want, lines(Lower(p), "nat", poolChain(pool))); diff != "" {
		t.Errorf("pool (-want +got):\n%s", diff)
	}
	pool.Affinity = &ir.Affinity{Timeout: time.Minute}
	pool.Backends = pool.Backends[:2]
	var chains []string
	for _, b := range pool.Backends {
		chains = append(chains, endpointChain(portKey(&pool.Port), b.AddrPort))
	}
	want = []string{
		want[0],
		"-m recent --rcheck --seconds 60 --reap --name " + chains[0] + " --mask 255.255.255.255 --rsource -j " + chains[0],
		"-m recent --rcheck --seconds 60 --reap --name " + chains[1] + " --mask 255.255.255.255 --rsource -j " + chains[1],
		"-m statistic --mode random --probability 0.5000000000 -j " + chains[0],
		"-j " + chains[1],
	}
	if diff := cmp.Diff(want, lines(Lower(p), "nat", poolChain(pool))); diff != "" {
		t.Errorf("pool with affinity (-want +got):\n%s", diff)
	}
}

func TestOneHairpinRuleForAnAddress(t *testing.T) {
	want := []string{
		"-s 10.244.1.10/32 -d 10.244.1.10/32 -j KUBE-MARK-MASQ",
		"-s 10.244.2.10/32 -d 10.244.2.10/32 -j KUBE-MARK-MASQ",
	}
	if diff := cmp.Diff(want, lines(Lower(irtest.Program(ir.ModeIPTables)), "nat", chainHairpin)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", chainHairpin, diff)
	}
}

func TestShuffledServicesGiveTheSameHubs(t *testing.T) {
	p := iptest.Many(ir.IPv4, 300, 3)
	node := &p.Node
	var fragments []*Fragment
	for i := range p.Services {
		fragments = append(fragments, LowerService(p.Family, node, &p.Services[i]))
	}
	want := Assemble(p.Family, node, fragments)
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(fragments), func(i, j int) { fragments[i], fragments[j] = fragments[j], fragments[i] })
	got := Assemble(p.Family, node, fragments)
	for _, r := range []*Ruleset{want, got} {
		for _, t := range r.Tables() {
			slices.SortFunc(t.Chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	if diff := cmp.Diff(text(want), text(got)); diff != "" {
		t.Errorf("text (-sorted +shuffled):\n%s", diff)
	}
}

func TestNoChainTwice(t *testing.T) {
	for _, p := range []*ir.Program{irtest.Program(ir.ModeIPTables), iptest.Many(ir.IPv4, 1000, 3), iptest.Many(ir.IPv6, 1000, 3)} {
		for _, table := range Lower(p).Tables() {
			seen := map[string]bool{}
			for _, c := range table.Chains {
				if seen[c.Name] || len(c.Name) > 28 || (!Owned(c.Name) && c.Name != chainFirewall) {
					t.Errorf("%s %s: twice, or not a name that is ours", table.Name, c.Name)
				}
				seen[c.Name] = true
			}
			for _, c := range table.Chains {
				for _, r := range c.Rules {
					if r.Target == Jump && !seen[r.Chain] {
						t.Errorf("%s %s: jumps to %s, which does not exist", table.Name, c.Name, r.Chain)
					}
				}
			}
		}
	}
}

func TestExplain(t *testing.T) {
	got := map[string]render.Entry{}
	rules := 0
	LowerAll(iptest.Both()).Explain(func(e render.Entry) {
		rules++
		got[e.Where] = e
		if e.Origin.Object == "" {
			t.Errorf("%s has no origin", e.Where)
		}
	})
	if rules != len(got) {
		t.Errorf("%d rules, but %d places", rules, len(got))
	}
	port := func(name string) ir.ServicePort {
		return ir.ServicePort{Service: ir.Name{Namespace: "default", Name: name}, Protocol: ir.TCP}
	}
	for _, want := range []render.Entry{
		{Where: "iptables nat KUBE-SERVICES 1", Text: `-d 10.96.0.10/32 -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G`,
			Match: "10.96.0.10:80/tcp", Port: port("web"), Origin: ir.Origin{Object: "Service default/web"}},
		{Where: "ip6tables nat KUBE-NODEPORTS 2", Text: `-p tcp -m comment --comment "default/local" -m tcp --dport 30081 -j KUBE-EXT-NEXWZWH5PGMW4KIO`,
			Match: "node:30081/tcp", Port: port("local"), Origin: ir.Origin{Object: "Service default/local"}},
		{Where: "iptables nat KUBE-SVC-LOLE4ISW44XBNF3G 2", Text: "-p tcp -m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.244.1.10:8080", Port: port("web"),
			Origin: ir.Origin{Object: "EndpointSlice default/web-1", Field: "endpoints[0]", Reason: "ready"}},
		{Where: "iptables filter KUBE-SERVICES 2", Text: `-d 10.96.0.13/32 -p tcp -m comment --comment "default/none has no endpoints" -m tcp --dport 80 -j REJECT`,
			Match: "10.96.0.13:80/tcp", Port: port("none"),
			Origin: ir.Origin{Object: "Service default/none", Reason: "no ready endpoint"}},
	} {
		if diff := cmp.Diff(want, got[want.Where]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Where, diff)
		}
	}
}

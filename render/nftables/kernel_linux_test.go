package nftables

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

func namespace(t *testing.T) *applytest.Namespace {
	t.Helper()
	applytest.RequireRoot(t)
	ns, err := applytest.NewNamespace("nftables")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// nft runs the tool in the namespace, with a script on its standard input.
func nft(t *testing.T, ns *applytest.Namespace, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := ns.Command(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(script)
	out, err := ns.Run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func load(t *testing.T, ns *applytest.Namespace, script string) {
	t.Helper()
	nft(t, ns, script, "-f", "/dev/stdin")
}

func list(t *testing.T, ns *applytest.Namespace) string {
	t.Helper()
	return nft(t, ns, "", "list", "ruleset")
}

func script(t *testing.T, programs ir.Programs) string {
	t.Helper()
	var b bytes.Buffer
	for _, o := range LowerAll(programs).Outputs() {
		if err := o.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// The tool and the kernel accept the script, even if it is loaded already. Its
// listing can be loaded again and is then unchanged.
func TestLoadListReload(t *testing.T) {
	for name := range variants(ir.IPv4) {
		t.Run(name, func(t *testing.T) {
			var programs ir.Programs
			for _, f := range families {
				p := richProgram(f)
				variants(f)[name](&p.Node)
				*programs.At(f) = p
			}
			text := script(t, programs)
			ns := namespace(t)
			nft(t, ns, text, "-c", "-f", "/dev/stdin")
			load(t, ns, text)
			first := list(t, ns)
			for _, want := range []string{"table ip proxyc", "table ip6 proxyc", "@count-1-ips goto lb-3", "ns/svc10:p"} {
				if !strings.Contains(first, want) {
					t.Errorf("the listing lacks %q", want)
				}
			}
			load(t, ns, text)
			if d := cmp.Diff(first, list(t, ns)); d != "" {
				t.Errorf("loaded twice (-once +twice):\n%s", d)
			}
			bytecode := instructions(t, ns)
			nft(t, ns, "", "flush", "ruleset")
			load(t, ns, first)
			if d := cmp.Diff(first, list(t, ns)); d != "" {
				t.Errorf("loaded from the listing (-want +got):\n%s", d)
			}
			// The listing omits defaults of nft and must have the same meaning.
			if d := cmp.Diff(bytecode, instructions(t, ns)); d != "" {
				t.Errorf("what the kernel does, loaded from the listing (-want +got):\n%s", d)
			}
			nft(t, ns, "", "flush", "table", "ip", Table)
			if !strings.Contains(list(t, ns), "map service-ips") {
				t.Error("a flushed table has lost its maps")
			}
		})
	}
}

// instructions returns the kernel's bytecode without handles. The matches of each
// rule are sorted, because nft may list them in another order.
func instructions(t *testing.T, ns *applytest.Namespace) map[string]int {
	t.Helper()
	rules := map[string]int{}
	chain, rule := "", []string{}
	flush := func() {
		if len(rule) > 0 {
			rules[chain+strings.Join(sortedMatches(rule), "\n")]++
		}
		rule = nil
	}
	for line := range strings.Lines(nft(t, ns, "", "--debug=netlink", "list", "ruleset")) {
		switch {
		case strings.HasPrefix(line, "  ["):
			rule = append(rule, strings.TrimSpace(line))
		case strings.HasPrefix(line, "ip"):
			flush()
			chain = strings.Join(strings.Fields(line)[:3], " ") + "\n"
		default:
			flush()
		}
	}
	return rules
}

// sortedMatches moves the match of the protocol, which nft moves, to the front.
func sortedMatches(rule []string) []string {
	for i := 0; i+1 < len(rule); i++ {
		if strings.HasPrefix(rule[i], "[ meta load l4proto => reg 1 ]") && strings.HasPrefix(rule[i+1], "[ cmp eq reg 1") {
			moved := []string{rule[i], rule[i+1]}
			return append(append(moved, rule[:i]...), rule[i+2:]...)
		}
	}
	return rule
}

func TestKernelTakesAnyName(t *testing.T) {
	p := richProgram(ir.IPv4)
	for i, name := range []string{`x" } flush ruleset {`, "a b\nc", "é", strings.Repeat("n", 300), `\`, "0:80"} {
		s := richService(ir.IPv4, ir.TCP, 100+10*i, true)
		for j := range s.Frontends {
			s.Frontends[j].Port.Service.Name, s.Frontends[j].Port.Port = name, name
		}
		for j := range s.Pools {
			s.Pools[j].Port.Service.Name, s.Pools[j].Port.Port = name, name
		}
		p.Services = append(p.Services, s)
	}
	ns := namespace(t)
	load(t, ns, script(t, ir.NewPrograms(p)))
	text := list(t, ns)
	nft(t, ns, "", "flush", "ruleset")
	load(t, ns, text)
}

// Large pools and many Services can be loaded.
func TestLoadLarge(t *testing.T) {
	p := bigProgram(2000)
	port := ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "large"}, Protocol: ir.TCP}
	large := ir.Service{Name: port.Service, Pools: []ir.Pool{{Port: port}}}
	for i := range 1000 {
		large.Pools[0].Backends = append(large.Pools[0].Backends, ir.Backend{
			AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 8080)})
	}
	large.Frontends = []ir.Frontend{{Match: ir.Match{Addr: addr(ir.IPv4, "203.0.113.1"), Protocol: ir.TCP, Port: 80}, Port: port,
		Routes: []ir.Route{{SNAT: true}}}}
	p.Services = append(p.Services, large)
	ns := namespace(t)
	load(t, ns, script(t, ir.NewPrograms(p)))
	if got := nft(t, ns, "", "list", "chain", "ip", Table, "lb-1000"); !strings.Contains(got, "numgen random mod 1000") {
		t.Errorf("chain lb-1000 is\n%s", got)
	}
}

// Each new connection of a client renews its affinity.
func TestAffinitySlides(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	node := topo.Namespace("node1")
	p := nftest.Sticky(ir.IPv4, ir.TCP)
	p.Services[0].Pools = []ir.Pool{{Port: p.Services[0].Pools[0].Port, Affinity: &ir.Affinity{Timeout: time.Hour},
		Backends: p.Services[0].Pools[0].Backends[:1]}}
	p.Services[0].Frontends = p.Services[0].Frontends[:1]
	load(t, node, script(t, ir.NewPrograms(p)))
	m := LowerService(&p.Node, p.Family, &p.Services[0]).Maps[0].Name
	left := func() time.Duration {
		_, rest, ok := strings.Cut(nft(t, node, "", "list", "map", "ip", Table, m), "expires ")
		if !ok {
			return 0
		}
		d, err := time.ParseDuration(strings.Fields(rest)[0])
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	visit := func() {
		if _, err := topo.Try("pod1c", "tcp", 0, addrPort(ir.IPv4, "10.96.0.10:80"), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	visit()
	before := left()
	for left() > before-20*time.Millisecond {
		if before == 0 {
			t.Fatal("the client is not remembered")
		}
	}
	low := left()
	visit()
	if after := left(); after <= low {
		t.Errorf("%v were left, %v after a new connection", low, after)
	}
}

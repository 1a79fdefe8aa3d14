package nftables

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Lowering Services one by one, in any order, yields the same as lowering all.
func TestFragmentsMakeTheWhole(t *testing.T) {
	for _, f := range families {
		p := richProgram(f)
		want := Lower(p)
		for _, order := range [][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8}, {5, 3, 7, 1, 6, 0, 8, 2, 4}} {
			got := Fixed(&p.Node, f)
			for _, i := range order {
				unite(got, LowerService(&p.Node, f, &p.Services[i]))
			}
			fixed := len(Fixed(&p.Node, f).Chains)
			got.Chains = append(got.Chains[:fixed:fixed], got.depend(&p.Node, got.Chains[fixed:])...)
			if d := gocmp.Diff(texts(want), texts(got)); d != "" {
				t.Errorf("%s, order %v (-want +got):\n%s", f, order, d)
			}
		}
	}
}

// texts returns the sorted lines of the script.
func texts(r *Ruleset) []string {
	var b bytes.Buffer
	Write(&b, NewTables(r))
	lines := strings.Split(b.String(), "\n")
	slices.Sort(lines)
	return lines
}

// unite adds a Fragment to a table, without duplicating shared parts.
func unite(r *Ruleset, f Fragment) {
	for id, elements := range f.Elements {
		for _, e := range elements {
			if !slices.ContainsFunc(r.Sets[id].Elements, func(o Element) bool { return o.Key == e.Key }) {
				r.Sets[id].Elements = append(r.Sets[id].Elements, e)
			}
		}
	}
	for _, c := range f.Chains {
		i := slices.IndexFunc(r.Chains, func(o Chain) bool { return o.Name == c.Name })
		if i < 0 {
			r.Chains = append(r.Chains, c)
		}
	}
	r.Sets = append(r.Sets, f.Maps...)
	for _, s := range f.Lists {
		if !slices.ContainsFunc(r.Sets, func(o Set) bool { return o.Name == s.Name }) {
			r.Sets = append(r.Sets, s)
		}
	}
}

// The number of chains and sets does not grow with the Services.
func TestChainsAndSetsDoNotGrow(t *testing.T) {
	few, many := Lower(bigProgram(40)), Lower(bigProgram(4000))
	if len(few.Chains) != len(many.Chains) || len(few.Sets) != len(many.Sets) {
		t.Errorf("chains and sets: %d and %d for 40 Services, %d and %d for 4000",
			len(few.Chains), len(few.Sets), len(many.Chains), len(many.Sets))
	}
}

func TestKeysAreUnique(t *testing.T) {
	for _, f := range families {
		r := Lower(richProgram(f))
		for i := range r.Sets {
			s := &r.Sets[i]
			seen := map[Key]bool{}
			for _, e := range s.Elements {
				if seen[e.Key] {
					t.Errorf("%s: %s twice", s.Name, s.KeyText(e.Key))
				}
				seen[e.Key] = true
			}
		}
		names := map[string]bool{}
		for _, c := range r.Chains {
			if names[c.Name] {
				t.Errorf("chain %s twice", c.Name)
			}
			names[c.Name] = true
		}
	}
}

// Frontends with the same ranges share one chain, across Services. A short list
// consists of rules. A long one is a set, which Services share even if their own
// addresses differ. Ranges within others are omitted, and a list that admits all
// clients is ignored.
func TestSourceRangesAreShared(t *testing.T) {
	ranges := func(of ...string) (all []ir.SourceRange) {
		for _, r := range of {
			all = append(all, ir.SourceRange{Prefix: netip.MustParsePrefix(r), Origin: ir.Origin{Object: "Service"}})
		}
		return all
	}
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("10.%d.0.0/16", 2*i))
	}
	lists := map[string][]ir.SourceRange{
		"few":         ranges("192.0.2.0/24", "198.51.100.0/25"),
		"few, turned": ranges("198.51.100.0/25", "192.0.2.7/32", "192.0.2.0/24", "192.0.2.0/24"),
		"others":      ranges("192.0.2.0/25"),
		"many":        ranges(many...),
		"many, own":   ranges(append(many, "203.0.113.1/32")...),
		"all":         ranges("10.0.0.0/8", "0.0.0.0/0"),
	}
	p := &ir.Program{Family: ir.IPv4, Node: testNode(ir.IPv4)}
	chains := map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(lists)) {
		s := ir.Service{Name: ir.Name{Namespace: "ns", Name: fmt.Sprint("web", i)}}
		for port := range uint16(3) {
			s.Frontends = append(s.Frontends, ir.Frontend{Kind: ir.LoadBalancer, Match: ir.Match{Addr: netip.MustParseAddr("203.0.113.1"), Port: uint16(100*i) + port, Protocol: ir.TCP},
				SourceRanges: lists[name], Port: ir.ServicePort{Service: s.Name}, Fallback: ir.Drop, Origin: ir.Origin{Object: "Service"}})
		}
		p.Services = append(p.Services, s)
		frag := LowerService(&p.Node, p.Family, &s)
		for _, e := range frag.Elements[ServiceIPs] {
			chains[name] = e.Verdict.Chain
		}
	}
	r := Lower(p)
	want := `few: ip saddr 192.0.2.0/24 return; ip saddr 198.51.100.0/25 return; COUNT; drop
few, turned: as few
many: ip saddr @LIST return; COUNT; drop
many, own: ip saddr 203.0.113.1 return; ip saddr @LIST return; COUNT; drop
others: ip saddr 192.0.2.0/25 return; COUNT; drop
`
	var sets []*Set
	for i := range r.Sets {
		if IsSources(r.Sets[i].Name) {
			sets = append(sets, &r.Sets[i])
		}
	}
	if len(sets) != 1 || len(sets[0].Elements) != len(many) || len(r.Sets[ServiceIPs].Elements) != 3*5 {
		t.Fatalf("%d sets, and %d frontends, want one of %d ranges for %d frontends", len(sets), len(r.Sets[ServiceIPs].Elements), len(many), 3*5)
	}
	got, seen := "", map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if other := seen[chains[name]]; other != "" {
			got += name + ": as " + other + "\n"
			continue
		}
		seen[chains[name]] = name
		i := slices.IndexFunc(r.Chains, func(c Chain) bool { return c.Name == chains[name] })
		var texts []string
		for _, rule := range r.Chains[i].Rules {
			texts = append(texts, strings.ReplaceAll(rule.Text(ir.IPv4), sets[0].Name, "LIST"))
			texts[len(texts)-1] = strings.ReplaceAll(texts[len(texts)-1], "ip daddr . meta l4proto . th dport @restricted-ips counter", "COUNT")
		}
		got += name + ": " + strings.Join(texts, "; ") + "\n"
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Every part of the script has a reason and a unique place.
func TestExplain(t *testing.T) {
	tables := LowerAll(ir.NewPrograms(richProgram(ir.IPv4), richProgram(ir.IPv6)))
	where := map[string]bool{}
	tables.Explain(func(e render.Entry) {
		if where[e.Where] {
			t.Errorf("%s: twice", e.Where)
		}
		where[e.Where] = true
		if e.Origin.Object == "" {
			t.Errorf("%s: no origin", e.Where)
		}
	})
	elements := 0
	for _, r := range ir.Present(tables.PerFamily) {
		for _, s := range r.Sets {
			elements += len(s.Elements)
		}
	}
	if len(where) < elements+100 {
		t.Errorf("%d entries for %d elements and the rules", len(where), elements)
	}
}

// No name in a snapshot can escape from a comment or the name of a chain.
func TestNames(t *testing.T) {
	for _, name := range []string{`x" } flush ruleset {`, "a b\nc", "é", strings.Repeat("n", 300), `\`} {
		s := richService(ir.IPv4, ir.TCP, 20, true)
		for i := range s.Frontends {
			s.Frontends[i].Port.Service.Name, s.Frontends[i].Port.Port = name, name
		}
		for i := range s.Pools {
			s.Pools[i].Port.Service.Name, s.Pools[i].Port.Port = name, name
		}
		frag := LowerService(&[]ir.Node{testNode(ir.IPv4)}[0], ir.IPv4, &s)
		var names []string
		for _, c := range frag.Chains {
			names = append(names, c.Name)
		}
		for _, m := range frag.Maps {
			names = append(names, m.Name)
		}
		for _, n := range names {
			if len(n) > maxName || plain(n) != n {
				t.Errorf("name %q", n)
			}
		}
		for _, e := range frag.Elements[ServiceIPs] {
			c := fixedSets[ServiceIPs].Comment(&e)
			if len(c) > maxComment || strings.ContainsAny(c, "\"\\\n") || !strings.HasPrefix(c, "ns/") {
				t.Errorf("comment %q", c)
			}
		}
	}
	a, b := ir.ServicePort{Port: "x/y"}, ir.ServicePort{Port: "x_y"}
	if poolName(a, "cluster") == poolName(b, "cluster") {
		t.Error("two ports have one name")
	}
}

func TestWriteError(t *testing.T) {
	if err := Write(failing{}, NewTables(Lower(richProgram(ir.IPv4)))); err == nil {
		t.Error("the writer's error is lost")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

// A pool that many frontends share has one map and one chain for each kind of masquerade: its
// elements are the sum of frontends and backends, with affinity and stable backends, too.
func TestSharedPoolsAreSums(t *testing.T) {
	const addresses, backends = 90, 50
	for name, shape := range map[string]struct {
		affinity, stable, local bool
		most                    int // elements and rules
	}{
		"random":       {most: 2*(addresses+backends) + 150},
		"affinity":     {affinity: true, most: 3*(addresses+backends) + 150},
		"by source":    {local: true, most: 5*addresses + 2*backends + 150},
		"sticky local": {affinity: true, local: true, most: 6*addresses + 6*backends + 200},
		"maglev":       {stable: true, most: 2*addresses + backends + 251 + 150},
	} {
		svc := richService(ir.IPv4, ir.TCP, 10, shape.affinity)
		for i := range svc.Pools {
			p := &svc.Pools[i]
			for j := len(p.Backends); j < backends; j++ {
				b := p.Backends[0]
				b.AddrPort = addrPort(ir.IPv4, fmt.Sprintf("10.244.2.%d:8080", 100+j))
				p.Backends = append(p.Backends, b)
			}
		}
		of := ir.ExternalIP
		if shape.local {
			of = ir.LoadBalancer
		}
		one := svc.Frontends[slices.IndexFunc(svc.Frontends, func(f ir.Frontend) bool { return f.Kind == of })]
		svc.Frontends = nil
		for i := range addresses {
			one.Match.Addr = addr(ir.IPv4, fmt.Sprintf("198.18.0.%d", 100+i))
			svc.Frontends = append(svc.Frontends, one)
		}
		if shape.stable {
			nftest.Stable(&svc, 251)
		}
		r := Lower(&ir.Program{Family: ir.IPv4, Node: testNode(ir.IPv4), Services: []ir.Service{svc}})
		n := 0
		for i := range r.Sets {
			n += len(r.Sets[i].Elements)
		}
		for i := range r.Chains {
			n += len(r.Chains[i].Rules)
		}
		if n > shape.most {
			t.Errorf("%s: %d elements and rules for %d addresses and %d backends, want at most %d", name, n, addresses, backends, shape.most)
		}
	}
}

// A pool is shared if that saves elements. Other Services have the elements of before.
func TestFewFrontendsOrBackendsDoNotShare(t *testing.T) {
	svc := nftest.Shared(ir.IPv4, ir.TCP, 10, false)
	shares := func(s ir.Service) bool {
		r := Lower(&ir.Program{Family: ir.IPv4, Node: testNode(ir.IPv4), Services: []ir.Service{s}})
		return slices.ContainsFunc(r.Sets, func(s Set) bool { return IsPool(s.Name) })
	}
	if !shares(svc) {
		t.Error("40 addresses with 15 backends do not share")
	}
	few := svc
	few.Frontends = slices.DeleteFunc(slices.Clone(svc.Frontends), func(f ir.Frontend) bool { return f.Match.Addr.IsValid() && f.Match.Addr.As4()[3] > 2 })
	if shares(few) {
		t.Error("few frontends share a pool")
	}
	few = svc
	few.Pools = slices.Clone(svc.Pools)
	for i := range few.Pools {
		few.Pools[i].Backends = few.Pools[i].Backends[:minSlots-1]
	}
	if shares(few) {
		t.Error("frontends share a pool of few backends")
	}
}

package nftables

import (
	"bytes"

	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Lowering Services one by one, in any order, gives what lowering all gives.
func TestFragmentsMakeTheWhole(t *testing.T) {
	for _, f := range families {
		p := richProgram(f)
		want := Lower(p)
		for _, order := range [][]int{{0, 1, 2, 3, 4, 5}, {5, 3, 1, 0, 2, 4}} {
			got := Fixed(&p.Node, f)
			for _, i := range order {
				unite(got, LowerService(&p.Node, f, &p.Services[i]))
			}
			fixed := len(Fixed(&p.Node, f).Chains)
			got.Chains = append(got.Chains[:fixed:fixed], got.count(&p.Node, got.Chains[fixed:])...)
			if d := gocmp.Diff(texts(want), texts(got)); d != "" {
				t.Errorf("%s, order %v (-want +got):\n%s", f, order, d)
			}
		}
	}
}

// texts returns the lines of the script, sorted.
func texts(r *Ruleset) []string {
	var b bytes.Buffer
	Write(&b, NewTables(r))
	lines := strings.Split(b.String(), "\n")
	slices.Sort(lines)
	return lines
}

// unite adds a fragment as the doc of Fragment says.
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
}

// What a table has one of must not grow with the Services.
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

func TestRangesDoNotOverlap(t *testing.T) {
	frag := LowerService(&[]ir.Node{testNode(ir.IPv4)}[0], ir.IPv4, &richProgram(ir.IPv4).Services[0])
	var got []string
	s := &fixedSets[FirewallSources]
	for _, e := range frag.Elements[FirewallSources] {
		got = append(got, s.KeyText(e.Key))
	}
	want := []string{
		"203.0.113.10 . tcp . 80 . 192.0.2.0/24",
		"203.0.113.10 . tcp . 80 . 10.244.0.0/16",
		"203.0.113.10 . tcp . 80 . 198.51.100.0/25",
		"203.0.113.10 . tcp . 81 . 0.0.0.0/0",
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Everything in the script has a reason, and a place of its own.
func TestExplain(t *testing.T) {
	tables := Renderer.Lower(ir.NewPrograms(richProgram(ir.IPv4), richProgram(ir.IPv6))).(Tables)
	where := map[string]bool{}
	tables.Explain(func(e render.Entry) bool {
		if where[e.Where] {
			t.Errorf("%s: twice", e.Where)
		}
		where[e.Where] = true
		if e.Origin.Object == "" {
			t.Errorf("%s: no origin", e.Where)
		}
		return true
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
	n := 0
	tables.Explain(func(render.Entry) bool { n++; return n < 10 })
	if n != 10 {
		t.Errorf("asked to stop at 10, stopped at %d", n)
	}
}

// No name in a snapshot can break out of a comment or the name of a chain.
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

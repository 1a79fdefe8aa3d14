package nftables

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Foreign changes of elements are found by reading only these, with the same result as a complete
// comparison. Other foreign changes cause a complete comparison.
func TestNotifiedElementsAreCompared(t *testing.T) {
	n := newNode(t)
	plane, drift := n.listening(t)
	want := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	replace := func() {
		t.Helper()
		if err := plane.Read(t.Context(), ir.Programs{}); err != nil {
			t.Fatal(err)
		}
		if _, err := plane.Commit(t.Context(), plane.Plan(want)); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	table := lower(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	// An element of each set that has any, which goes, comes, or becomes another.
	type attack struct {
		script string
		alone  bool // elements of ours are touched, and nothing else
	}
	var attacks []attack
	for f, r := range ir.Present(table.PerFamily) {
		of := f.NFT() + " proxyc "
		for i := range r.Sets {
			s := &r.Sets[i]
			if len(s.Elements) == 0 {
				continue
			}
			_, fixed := fixedSet(s.Name)
			first, last := s.KeyText(s.Elements[0].Key), s.KeyText(s.Elements[len(s.Elements)-1].Key)
			script := "delete element " + of + s.Name + " { " + first + " }"
			if last != first {
				script += "; delete element " + of + s.Name + " { " + last + " }"
			}
			attacks = append(attacks, attack{script, fixed})
			if s.Name == "service-ips" || s.Name == "service-nodeports" {
				attacks = append(attacks, attack{"delete element " + of + s.Name + " { " + first + " }; add element " + of + s.Name + " { " + first + " : goto lb-2 }", true})
			}
		}
	}
	attacks = append(attacks,
		attack{"add element ip proxyc service-ips { 9.9.9.9 . tcp . 80 : goto lb-2 }; add element ip6 proxyc cluster-ips { 2001:db8::9 }", true},
		attack{"add element ip proxyc cluster-ips { 9.9.9.9 }; delete element ip proxyc cluster-ips { 9.9.9.9 }", true},
		attack{"add element ip proxyc service-ips { 9.9.9.9 . tcp . 80 : accept }", true},
		attack{"add element ip proxyc cluster-ips { * }", false},
		attack{"add element ip proxyc cluster-ips { 9.9.9.9 }; add rule ip proxyc services counter", false},
		attack{"flush chain ip proxyc services", false},
	)
	for _, a := range attacks {
		if err := n.write(t, a.script); err != nil {
			t.Fatalf("%s: %v", a.script, err)
		}
		select {
		case <-drift:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not reported", a.script)
		}
		got, err := plane.Compare(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if alone := got.(*Plan).want == nil; alone != a.alone {
			t.Errorf("%s: elements alone are compared: %t, want %t", a.script, alone, a.alone)
		}
		have, err := n.reader.read(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		whole := newPlan(have, table)
		if diff := cmp.Diff(byObject(whole), byObject(got)); diff != "" {
			t.Errorf("%s (-everything +touched):\n%s", a.script, diff)
		}
		if _, err := plane.Commit(t.Context(), got); err != nil {
			t.Fatal(err)
		}
		holds(t, "after "+a.script, n, table)
	}
}

// A failed comparison loses nothing. The next one finds the same changes, and later ones.
func TestFailedComparison(t *testing.T) {
	n := newNode(t)
	plane, drift := n.listening(t)
	want := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	if _, _, err := apply.Once(t.Context(), plane, want, func(apply.Plan) bool { return true }); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	set := lower(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6)).IPv4.Sets[rules.ClusterIPs]
	remove := func(i int) {
		t.Helper()
		if err := n.write(t, "delete element ip proxyc "+set.Name+" { "+set.KeyText(set.Elements[i].Key)+" }"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-drift:
		case <-time.After(10 * time.Second):
			t.Fatal("not reported")
		}
	}
	remove(0)
	if _, err := plane.Compare(ended); err == nil {
		t.Fatal("a comparison without time to read succeeded")
	}
	remove(1)
	plan, err := plane.Compare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if found := byObject(plan); len(found) != 2 {
		t.Errorf("found %+v, want both elements", found)
	}
}

func byObject(p apply.Plan) []apply.Operation {
	return slices.SortedFunc(p.Differences, func(a, b apply.Operation) int {
		return strings.Compare(a.Object+a.Verb.String(), b.Object+b.Verb.String())
	})
}

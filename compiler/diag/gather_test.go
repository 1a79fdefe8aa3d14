package diag

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Gathering findings in order yields the same as Summarize of all of them.
func TestGathererIsFewer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all List
		for line := range rng.IntN(60) {
			all.Add(Diagnostic{Severity: Error + Severity(rng.IntN(2)), Code: [...]Code{PortValue, ExternalIPKnown}[rng.IntN(2)], File: "f", Line: line + 1, Object: fmt.Sprint("Service ns/", line),
				Path: fmt.Sprintf("spec.ports[%d]", rng.IntN(9)), Msg: fmt.Sprintf("must be %d, got %d", rng.IntN(4), rng.IntN(100))})
		}
		for most := range 6 {
			g := Gatherer{MaxSimilar: most}
			for _, d := range all {
				g.Add(d, nil)
			}
			want := all.Sorted()
			if most > 0 {
				want = want.Summarize(most)
			}
			if diff := cmp.Diff(want, g.List(), cmp.Transformer("nil", func(l List) []Diagnostic { return append([]Diagnostic{}, l...) })); diff != "" {
				t.Fatalf("most %d (-want +got):\n%s", most, diff)
			}
		}
	}
	// Findings that already have a count.
	twice := List{{Severity: Error, Line: 1, Msg: "x", More: 9}, {Severity: Error, Line: 2, Msg: "x", More: 4}}
	if got := twice.Summarize(5); len(got) != 1 || got[0].More != 14 {
		t.Errorf("got %v, want one of 15", got)
	}
}

// A similar finding is counted without keeping or completing it, so that it uses
// no memory.
func TestGathererHoldsFew(t *testing.T) {
	g := Gatherer{MaxSimilar: 5}
	completed := 0
	add := func() {
		g.Add(Diagnostic{Severity: Error, Object: "Service", Msg: "must be a, got b"}, func(*Diagnostic) { completed++ })
	}
	for range 10 {
		add()
	}
	if allocs := testing.AllocsPerRun(10_000, add); allocs > 0 {
		t.Errorf("%v allocations for a finding that is only counted", allocs)
	}
	if list := g.List(); len(list) != 1 || list[0].More != 10_010 || completed != 5 {
		t.Errorf("%d findings, %d completed: %v", len(list), completed, list)
	}
}

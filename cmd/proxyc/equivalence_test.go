package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// TestEquivalence compares the rules of every mode with the meaning of the IR: the same packets
// have the same fate in random clusters.
func TestEquivalence(t *testing.T) {
	start := applytest.Seed(t)
	const perWorld = 50
	for _, mode := range ir.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			met := map[sim.Fate]int{}
			for n := range uint64(*reviewtest.Packets / perWorld) {
				r := reviewtest.New(start, n)
				w := r.World(mode)
				programs := w.Compile(t)
				for range perWorld {
					p := programs.Of(ir.Families()[r.IntN(2)])
					pkt := r.Packet(p)
					got, want := w.Fates(p, pkt)
					met[want.Fate]++
					if !got.Equal(want) {
						w.Fail(t, fmt.Sprintf("-seed=%d, world %d", start, n), pkt)
						return
					}
				}
			}
			t.Logf("%v", met)
			for _, fate := range []sim.Fate{sim.NotOurs, sim.Accepted} {
				if met[fate] == 0 {
					t.Errorf("no packet was %s: the test shows nothing", fate)
				}
			}
		})
	}
}

// allText returns every text of a compilation, diagnostics included.
func allText(t testing.TB, w *reviewtest.World, order func(n int, swap func(i, j int))) string {
	t.Helper()
	programs, diags := compiler.Compile(w.CompleteConfig(), w.Snapshot(order), w.Facts)
	var b strings.Builder
	_, all, rendered := review.Outputs(programs)
	for _, o := range all {
		must(t, o.Write(&b))
	}
	must(t, review.WriteExplain(&b, rendered))
	b.WriteString(diagnosticsText(diags))
	return b.String()
}

// FuzzOrder checks that the order of objects changes no byte, in any mode.
func FuzzOrder(f *testing.F) {
	for i := range uint64(10) {
		f.Add(i, i, uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed, shuffle uint64, mode uint8) {
		r := reviewtest.New(seed, 0)
		w := r.World(ir.Modes()[int(mode)%len(ir.Modes())])
		want := allText(t, w, nil)
		if got := allText(t, w, reviewtest.New(shuffle, 1).Shuffle); got != want {
			t.Errorf("another order of objects gives other text")
		}
	})
}

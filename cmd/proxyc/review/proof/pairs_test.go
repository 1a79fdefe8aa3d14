package proof

import (
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// The rules of two modes differ only where their Programs differ, at the destinations of either
// side: a backend that only one mode compares with is no difference.
func TestModesDifferLikeTheirPrograms(t *testing.T) {
	start := applytest.Seed(t)
	modes := []ir.Mode{ir.ModeIPTables, ir.ModeIPVS, ir.ModeNFTables, ir.ModeUserspace}
	for i, from := range modes {
		for _, to := range modes[i+1:] {
			t.Run(string(from+"-"+to), func(t *testing.T) {
				t.Parallel()
				for n := range uint64(applytest.Of(5, 40)) {
					was, is := reviewtest.New(start, n).World(from).Compile(t), reviewtest.New(start, n).World(to).Compile(t)
					for f, a := range ir.Present(was) {
						b := is.Of(f)
						r, err := prove.Compare(t.Context(), flow.NodeOf(a, b), review.Modes[from].Evaluate(a), review.Modes[to].Evaluate(b))
						if err != nil || len(r.Doubts) > 0 {
							t.Fatal(err, r)
						}
						meansA, meansB := sim.NewEvaluator(a), sim.NewEvaluator(b)
						for _, d := range r.Differences {
							if d.Packet.FromNode() && d.Packet.Src == d.Packet.Dst {
								continue // in mode ipvs, the node has the address; in others, such a packet does not exist
							}
							if meant := meansA.Outcome(d.Packet, nil); !meant.Equal(d.A) {
								t.Fatalf("seed %d, world %d, %+v: mode %s %s, its Program %s", start, n, d.Packet, from, d.A, meant)
							}
							if meant := meansB.Outcome(d.Packet, nil); !meant.Equal(d.B) {
								t.Fatalf("seed %d, world %d, %+v: mode %s %s, its Program %s", start, n, d.Packet, to, d.B, meant)
							}
						}
					}
				}
			})
		}
	}
}

package proof

import (
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// BenchmarkProve compares the rules of a mode with the IR, for IPv4 in a cluster of Services of all
// kinds with five endpoints each. It excludes decoding and compiling, and includes lowering and
// indexing.
func BenchmarkProve(b *testing.B) {
	for _, n := range []int{1_000, 2_000, 10_000} {
		snap := reviewtest.MixedCluster(b, n)
		for _, mode := range provable() {
			b.Run(fmt.Sprintf("mode=%s/services=%d", mode, n), func(b *testing.B) {
				p := reviewtest.MixedProgram(b, ir.Mode(mode), snap)
				classes := 0
				for b.Loop() {
					r, err := prove.Compare(b.Context(), prove.NodeOf(p), sim.NewEvaluator(p), review.Modes[ir.Mode(mode)].Evaluate(p))
					if err != nil {
						b.Fatal(err)
					}
					if !r.Equal() {
						b.Fatal("not equal")
					}
					classes = r.Classes
				}
				b.ReportMetric(float64(classes)/float64(n), "classes/service")
			})
		}
	}
}

// BenchmarkProveChange proves a changed Service, as replay --prove does after the change, in
// clusters of different sizes.
func BenchmarkProveChange(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		snap := reviewtest.MixedCluster(b, n)
		for _, mode := range provable() {
			p := reviewtest.MixedProgram(b, ir.Mode(mode), snap)
			b.Run(fmt.Sprintf("mode=%s/services=%d", mode, n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					one := *p
					one.Services = p.Services[i%len(p.Services):][:1]
					if found := Unproved(b.Context(), ir.NewPrograms(&one)); len(found) > 0 {
						b.Fatal(found)
					}
				}
			})
		}
	}
}

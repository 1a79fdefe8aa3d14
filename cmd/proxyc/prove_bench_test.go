package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// BenchmarkProve holds the rules of a mode against the IR, for a cluster of
// Services of all kinds with five endpoints each, in IPv4; decoding and compiling
// are not counted, lowering and indexing are.
func BenchmarkProve(b *testing.B) {
	for _, n := range []int{1_000, 2_000, 10_000} {
		snap := mixedCluster(b, n)
		for _, mode := range provable() {
			b.Run(fmt.Sprintf("mode=%s/services=%d", mode, n), func(b *testing.B) {
				p := mixedProgram(b, ir.Mode(mode), snap)
				classes := 0
				for b.Loop() {
					r, err := prove.Compare(b.Context(), prove.NodeOf(p), sim.NewEvaluator(p), ruleSides[ir.Mode(mode)](p))
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

// mixedCluster is a snapshot of Services of all kinds, five endpoints each.
func mixedCluster(t testing.TB, services int) *snapshot.Snapshot {
	t.Helper()
	var text bytes.Buffer
	if err := cluster.WriteList(&text, cluster.Cluster{Services: services, Endpoints: 5}.Objects()); err != nil {
		t.Fatal(err)
	}
	snap, diags := decode(text.Bytes())
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	return snap
}

func mixedProgram(t testing.TB, mode ir.Mode, snap *snapshot.Snapshot) *ir.Program {
	t.Helper()
	cfg := parseConfig(t, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.128.0.0/9\n"))
	programs, _ := compiler.Compile(cfg, snap, compiler.Facts{NodeName: "node1"})
	return programs.Of(ir.IPv4)
}

// BenchmarkProveChange proves a Service that changed, as watch --prove does after
// the change, in clusters of different size.
func BenchmarkProveChange(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		snap := mixedCluster(b, n)
		for _, mode := range provable() {
			p := mixedProgram(b, ir.Mode(mode), snap)
			b.Run(fmt.Sprintf("mode=%s/services=%d", mode, n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					one := *p
					one.Services = p.Services[i%len(p.Services):][:1]
					if found := unproved(b.Context(), ir.NewPrograms(&one)); len(found) > 0 {
						b.Fatal(found)
					}
				}
			})
		}
	}
}

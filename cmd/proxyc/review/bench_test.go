package review_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const benchEndpoints = 10 // of each Service

// BenchmarkText compiles a decoded snapshot and writes the mode's texts.
func BenchmarkText(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		var text bytes.Buffer
		if err := cluster.WriteList(&text, cluster.Cluster{Services: n, Endpoints: benchEndpoints, Plain: true}.Objects()); err != nil {
			b.Fatal(err)
		}
		snap, diags := reviewtest.Decode(text.Bytes())
		if len(diags) > 0 {
			b.Fatal(diags)
		}
		for _, mode := range ir.Modes() {
			b.Run(fmt.Sprintf("mode=%s/services=%d", mode, n), func(b *testing.B) { benchText(b, mode, snap, n) })
		}
	}
}

func benchText(b *testing.B, mode ir.Mode, snap *snapshot.Snapshot, n int) {
	cfg := reviewtest.ParseConfig(b, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.128.0.0/9\n"))
	b.ReportAllocs()
	for b.Loop() {
		programs, _ := compiler.Compile(cfg, snap, compiler.Facts{NodeName: "node1"})
		for _, o := range review.Modes[mode].Lower(programs).Outputs() {
			if err := o.Write(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/service")
}

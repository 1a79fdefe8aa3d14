package nftables

import (
	"fmt"
	"io"
	"testing"
)

func BenchmarkLowerWrite(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		p := bigProgram(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Write(io.Discard, NewTables(Lower(p))); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/service")
		})
	}
}

func BenchmarkLowerService(b *testing.B) {
	p := bigProgram(1)
	b.ReportAllocs()
	for b.Loop() {
		LowerService(&p.Node, p.Family, &p.Services[0])
	}
}

package iptables

import (
	"fmt"
	"io"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables/iptest"
)

func BenchmarkLowerAndWrite(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		p := iptest.Many(ir.IPv4, n, 10)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				size, err := Lower(p).WriteTo(io.Discard)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/service")
		})
	}
}

func BenchmarkLowerService(b *testing.B) {
	p := iptest.Many(ir.IPv4, 2, 10)
	b.ReportAllocs()
	for b.Loop() {
		LowerService(p.Family, &p.Node, &p.Services[1])
	}
}

// BenchmarkLowererChange changes one Service of n, without comparing Rulesets.
func BenchmarkLowererChange(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			p := iptest.Many(ir.IPv4, n, 10)
			a := NewLowerer(p)
			b.ReportAllocs()
			for b.Loop() {
				s := &p.Services[n/2+1]
				a.Change([]ir.Change{{Name: s.Name, Old: s, New: s}})
			}
		})
	}
}

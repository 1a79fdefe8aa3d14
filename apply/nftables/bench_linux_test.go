package nftables

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// large gives both tables of a node with n Services of five endpoints.
func large(n int) (*ir.Program, rules.Tables) {
	p := nftest.Large(n)
	for i := range p.Services {
		b := &p.Services[i].Pools[0].Backends
		*b = (*b)[:5]
	}
	return p, rules.Tables{rules.Lower(p), rules.Lower(&ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)})}
}

// BenchmarkFullLoad brings an empty kernel to 10,000 Services: through netlink,
// and, as the limit, the text of the same through nft.
func BenchmarkFullLoad(b *testing.B) {
	n := newNode(b)
	_, want := large(10_000)
	flush := func() {
		b.StopTimer()
		n.nft(b, "", "flush", "ruleset")
		b.StartTimer()
	}
	b.Run("netlink", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			flush()
			if err := n.Commit(b.Context(), n.Plan(nil, want)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("nft -f", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "rules.nft")
		if err := os.WriteFile(file, []byte(text(b, want)), 0o644); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			flush()
			n.nft(b, "", "-f", file)
		}
	})
	b.Run("read and compare", func(b *testing.B) {
		for b.Loop() {
			have, err := n.Read(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if !n.Plan(have, want).Empty() {
				b.Fatal("the tables are not what is wanted")
			}
		}
	})
}

// BenchmarkOneEndpoint changes one endpoint of one Service and back, among
// few and many Services; and an empty transaction, as the limit.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, services := range []int{1000, 20_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			n := newNode(b)
			p, want := large(services)
			if err := n.Commit(b.Context(), n.Plan(nil, want)); err != nil {
				b.Fatal(err)
			}
			state := NewState(ir.IPv4)
			for i := range p.Services {
				state.Update(Update{p.Services[i].Name, rules.LowerService(&p.Node, p.Family, &p.Services[i])})
			}
			one := p.Services[services/2]
			pool := one.Pools[0]
			pool.Backends = append([]ir.Backend{}, pool.Backends...)
			pool.Backends[2].AddrPort = nftest.AddrPort(ir.IPv4, "10.244.2.11:8080")
			other := one
			other.Pools = append([]ir.Pool{pool}, one.Pools[1:]...)
			versions := [2]*ir.Service{&other, &one}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				update := Update{one.Name, rules.LowerService(&p.Node, p.Family, versions[i%2])}
				if err := n.Commit(b.Context(), state.Update(update)); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
	b.Run("empty transaction", func(b *testing.B) {
		n := newNode(b)
		want := both(func(f ir.Family) *ir.Program { return &ir.Program{Family: f, Node: nftest.Node(f)} })
		if err := n.Commit(b.Context(), n.Plan(nil, want)); err != nil {
			b.Fatal(err)
		}
		empty := &batch{}
		c := &change{family: ir.IPv4}
		empty.add(c, newTable, encodeTable(rules.Table), about{})
		for b.Loop() {
			if r, err := n.c.send(context.Background(), empty); err != nil || len(r) > 0 {
				b.Fatal(err, r)
			}
		}
	})
}

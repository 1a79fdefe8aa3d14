package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// large returns both tables of a node with n Services of five endpoints.
func large(n int) (*ir.Program, rules.Tables) {
	p := nftest.Large(n)
	for i := range p.Services {
		b := &p.Services[i].Pools[0].Backends
		*b = (*b)[:5]
	}
	return p, rules.NewTables(rules.Lower(p), rules.Lower(&ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)}))
}

// BenchmarkOneEndpoint changes one endpoint of one Service and back, among few and many Services,
// alternating with an empty transaction as the lower limit. ns/op is the median of the changes,
// x-empty its ratio to the median of the empty transactions.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, services := range []int{1000, 20_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			n := newNode(b)
			p, want := large(services)
			if _, err := n.Commit(b.Context(), newPlan(rules.Tables{}, want)); err != nil {
				b.Fatal(err)
			}
			state := rules.NewLowerer(ir.IPv4)
			for i := range p.Services {
				update(state, &p.Node, ir.Change{Name: p.Services[i].Name, New: &p.Services[i]})
			}
			one := p.Services[services/2]
			pool := one.Pools[0]
			pool.Backends = append([]ir.Backend{}, pool.Backends...)
			pool.Backends[2].AddrPort = nftest.AddrPort(ir.IPv4, "10.244.2.11:8080")
			other := one
			other.Pools = append([]ir.Pool{pool}, one.Pools[1:]...)
			versions := [2]*ir.Service{&other, &one}
			var limit, took []time.Duration
			timed := func(times *[]time.Duration, f func() error) {
				start := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				*times = append(*times, time.Since(start))
			}
			for i := 0; b.Loop(); i++ {
				timed(&took, func() error {
					_, err := n.Commit(b.Context(), planOf(update(state, &p.Node, ir.Change{Name: one.Name, Old: versions[1-i%2], New: versions[i%2]})))
					return err
				})
				timed(&limit, n.commitNothing)
			}
			b.ReportMetric(median(took), "ns/op")
			b.ReportMetric(median(took)/median(limit), "x-empty")
		})
	}
}

// BenchmarkOneService adds and removes one Service of five endpoints, and scales another from two
// endpoints to three and back, among few and many Services. It reports medians of the first half of
// each; x-empty is the ratio of the added Service to an empty transaction.
func BenchmarkOneService(b *testing.B) {
	for _, services := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			n := newNode(b)
			p, _ := large(services + 2)
			one := p.Services[services+1]
			three := withBackends(p.Services[1], 3)
			two := withBackends(three, 2)
			p.Services = p.Services[:services]
			p.Services[1], p.Services[2], p.Services[3] = two, withBackends(p.Services[2], 3), withBackends(p.Services[3], 2)
			if _, err := n.Commit(b.Context(), newPlan(rules.Tables{}, rules.NewTables(rules.Lower(p)))); err != nil {
				b.Fatal(err)
			}
			state := rules.NewLowerer(ir.IPv4)
			for i := range p.Services {
				update(state, &p.Node, ir.Change{Name: p.Services[i].Name, New: &p.Services[i]})
			}
			timed := func(f func() error) time.Duration {
				start := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				return time.Since(start)
			}
			change := func(c ir.Change) time.Duration {
				return timed(func() error {
					_, err := n.Commit(b.Context(), planOf(update(state, &p.Node, c)))
					return err
				})
			}
			var added, grown, limit []time.Duration
			for b.Loop() {
				added = append(added, change(ir.Change{Name: one.Name, New: &one}))
				change(ir.Change{Name: one.Name, Old: &one})
				grown = append(grown, change(ir.Change{Name: two.Name, Old: &two, New: &three}))
				change(ir.Change{Name: two.Name, Old: &three, New: &two})
				limit = append(limit, timed(n.commitNothing))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(added), "ns-added")
			b.ReportMetric(median(grown), "ns-grown")
			b.ReportMetric(median(added)/median(limit), "x-empty")
		})
	}
}

// withBackends returns a Service whose first pool has n backends.
func withBackends(s ir.Service, n int) ir.Service {
	s.Pools = slices.Clone(s.Pools)
	s.Pools[0].Backends = s.Pools[0].Backends[:n]
	return s
}

// commitNothing declares an existing table.
func (n node) commitNothing() error {
	empty := &batch{}
	empty.add(&change{family: ir.IPv4}, unix.NFT_MSG_NEWTABLE, codec.EncodeTable(rules.Table), purpose{})
	refusals, err := n.writer.conn.Send(context.Background(), empty.messages)
	for _, r := range refusals {
		err = errors.Join(err, r)
	}
	return err
}

// median returns the median in nanoseconds.
func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds())
}

// BenchmarkElements writes and reads the attributes of the backends of 10,000 Services, with the
// codec and with netlink's own encoder and decoder.
func BenchmarkElements(b *testing.B) {
	_, tables := large(10_000)
	var s *rules.Set
	for i := range tables.IPv4.Sets {
		if tables.IPv4.Sets[i].Name == rules.Backends.String() {
			s = &tables.IPv4.Sets[i]
		}
	}
	const family = ir.IPv4
	var written codec.Builder
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			written = written[:0]
			for i := range s.Elements {
				codec.AppendElement(&written, s, family, &s.Elements[i], false)
			}
		}
	})
	b.Run("write with AttributeEncoder", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ae := netlink.NewAttributeEncoder()
			for i := range s.Elements {
				ae.Nested(unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) error {
					e := &s.Elements[i]
					var key, data codec.Builder // their values cost the same either way
					codec.AppendKey(&key, s, family, &e.Key)
					codec.AppendAddr(&data, e.To.Addr())
					data = append(data, byte(e.To.Port()>>8), byte(e.To.Port()), 0, 0)
					value := func(t uint16, v []byte) {
						ae.Nested(t, func(ae *netlink.AttributeEncoder) error {
							ae.Bytes(unix.NFTA_DATA_VALUE, v)
							return nil
						})
					}
					value(unix.NFTA_SET_ELEM_KEY, key[codec.AttrHeader:])
					value(unix.NFTA_SET_ELEM_DATA, data)
					if c := s.Comment(e); c != "" {
						ae.Bytes(unix.NFTA_SET_ELEM_USERDATA, append([]byte{codec.UdataElemComment, byte(len(c) + 1)}, c+"\x00"...))
					}
					return nil
				})
			}
			got, err := ae.Encode()
			if err != nil {
				b.Fatal(err)
			}
			if len(got) != len(written) {
				b.Fatalf("%d bytes, want %d", len(got), len(written))
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			items, err := codec.Attrs(written)
			if err != nil {
				b.Fatal(err)
			}
			for _, item := range items {
				if _, err := codec.Attrs(item.Data); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("read with AttributeDecoder", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			list, err := netlink.NewAttributeDecoder(written)
			if err != nil {
				b.Fatal(err)
			}
			for list.Next() {
				list.Nested(func(ad *netlink.AttributeDecoder) error {
					for ad.Next() {
						ad.Bytes()
					}
					return ad.Err()
				})
			}
			if list.Err() != nil {
				b.Fatal(list.Err())
			}
		}
	})
}

// BenchmarkSourceRanges adds, changes and removes a load balancer with several ports and source
// ranges, among other Services and load balancers with ranges of their own. It reports medians in
// milliseconds.
func BenchmarkSourceRanges(b *testing.B) {
	for _, c := range []struct{ services, ports, ranges, lists, each int }{
		{1000, 1, 3, 0, 0}, {10_000, 1, 3, 0, 0}, {50_000, 1, 3, 0, 0},
		{10_000, 10, 20, 0, 0}, {10_000, 100, 20, 0, 0}, {10_000, 100, 100, 0, 0}, {10_000, 100, 1000, 0, 0}, {10_000, 1, 50_000, 0, 0},
		{10_000, 1, 3, 100, 3}, {10_000, 1, 3, 1000, 3}, {10_000, 1, 3, 10_000, 3},
		{10_000, 1, 20, 100, 20}, {10_000, 1, 20, 1000, 20}, {10_000, 1, 20, 10_000, 20},
	} {
		b.Run(fmt.Sprintf("services=%d/%dx%d/lists=%dx%d", c.services, c.ports, c.ranges, c.lists, c.each), func(b *testing.B) {
			n := newNode(b)
			p, want := large(c.services)
			if _, err := n.Commit(b.Context(), newPlan(rules.Tables{}, want)); err != nil {
				b.Fatal(err)
			}
			state := rules.NewLowerer(ir.IPv4)
			for i := range p.Services {
				update(state, &p.Node, ir.Change{Name: p.Services[i].Name, New: &p.Services[i]})
			}
			var others []ir.Change
			for i := range c.lists {
				s := guarded(1000+i, 1, c.each, 20_000+i)
				others = append(others, ir.Change{Name: s.Name, New: s})
			}
			took := map[string][]time.Duration{}
			change := func(what string, changes ...ir.Change) {
				start := time.Now()
				if r, err := n.Commit(b.Context(), planOf(update(state, &p.Node, changes...))); err != nil || len(r.Refused) > 0 {
					b.Fatal(err, r.Error())
				}
				took[what] = append(took[what], time.Since(start))
			}
			change("others", others...)
			one, other := guarded(1, c.ports, c.ranges, 0), guarded(1, c.ports, c.ranges, 1)
			for b.Loop() {
				change("comes", ir.Change{Name: one.Name, New: one})
				change("changes", ir.Change{Name: one.Name, Old: one, New: other})
				change("goes", ir.Change{Name: one.Name, Old: other})
			}
			for what, times := range took {
				b.ReportMetric(median(times)/1e6, what+"-ms")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

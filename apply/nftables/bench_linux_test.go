package nftables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// BenchmarkFullLoad loads 10,000 Services into an empty kernel: over netlink and, as the lower
// limit, the same as text through nft.
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
			if _, err := n.Commit(b.Context(), newPlan(rules.Tables{}, want)); err != nil {
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
			have, err := n.reader.read(b.Context(), nil)
			if err != nil {
				b.Fatal(err)
			}
			if !newPlan(have, want).Empty() {
				b.Fatal("the tables are not what is wanted")
			}
		}
	})
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

// BenchmarkOwned changes one endpoint of one of 10,000 Services in tables that this process owns,
// alternating with the same in tables without an owner. ns/op is the median of the former,
// x-anybodys the ratio of the latter to it.
func BenchmarkOwned(b *testing.B) {
	const services = 10_000
	nodes := [2]node{newNode(b), newNode(b)}
	nodes[0].writer.claimOwnership()
	if !nodes[0].writer.ownTables {
		b.Skip("the kernel knows no tables with an owner")
	}
	p, _ := large(services)
	var states [2]*rules.Lowerer
	for i, n := range nodes {
		if _, err := n.Commit(b.Context(), planFor(state{}, ir.NewPrograms(p), "")); err != nil {
			b.Fatal(err)
		}
		states[i] = rules.NewLowerer(ir.IPv4)
		for j := range p.Services {
			update(states[i], &p.Node, ir.Change{Name: p.Services[j].Name, New: &p.Services[j]})
		}
	}
	one := p.Services[services/2]
	other := withBackends(one, len(one.Pools[0].Backends))
	other.Pools[0].Backends = slices.Clone(other.Pools[0].Backends)
	other.Pools[0].Backends[2].AddrPort = nftest.AddrPort(ir.IPv4, "10.244.2.11:8080")
	versions := [2]*ir.Service{&other, &one}
	var took [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		for j, n := range nodes {
			plan := planOf(update(states[j], &p.Node, ir.Change{Name: one.Name, Old: versions[1-i%2], New: versions[i%2]}))
			start := time.Now()
			if _, err := n.Commit(b.Context(), plan); err != nil {
				b.Fatal(err)
			}
			took[j] = append(took[j], time.Since(start))
		}
	}
	b.ReportMetric(median(took[0]), "ns/op")
	b.ReportMetric(median(took[0])/median(took[1]), "x-anybodys")
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

// BenchmarkReadBack reads and plans the tables of a node that matches, with Services of ten
// endpoints: by dumps, alternating with lookups in every set of at least a thousand elements, and
// in the largest set only. It reports medians of CPU time of the process, including the kernel's
// for it, in milliseconds.
func BenchmarkReadBack(b *testing.B) {
	for _, services := range []int{2500, 5000, 10_000, 16_000, 50_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			n := newNode(b)
			want := ir.NewPrograms(nftest.Large(services))
			tables := rules.LowerAll(want)
			if _, err := n.Commit(b.Context(), newPlan(rules.Tables{}, tables)); err != nil {
				b.Fatal(err)
			}
			set := setsByName(tables.IPv4)[rules.Backends.String()]
			elements := 0
			for i := range tables.IPv4.Sets {
				elements += len(tables.IPv4.Sets[i].Elements)
			}
			tables = rules.Tables{}
			took := map[string][]time.Duration{}
			timed := func(what string, f func()) {
				runtime.GC()
				before := processorTime(b)
				f()
				took[what] = append(took[what], processorTime(b)-before)
			}
			read := func(from int) func() {
				return func() {
					n.reader.lookupFrom = from
					if err := n.Read(b.Context(), want); err != nil {
						b.Fatal(err)
					}
					if !n.Plan(want).Empty() {
						b.Fatal("the tables are not what is wanted")
					}
				}
			}
			read(1 << 30)() // the kernel makes its hash tables larger for some time after a commit
			for b.Loop() {
				timed("dumps", read(1<<30))
				timed("keys", read(1000))
				timed("default", read(lookupFrom))
				timed("dump-of-largest", func() {
					s := *rules.Backends.Set()
					if _, err := n.reader.readElements(b.Context(), ir.IPv4, &s, rules.Backends, nil); err != nil || len(s.Elements) != len(set.Elements) {
						b.Fatal(len(s.Elements), err)
					}
				})
				timed("keys-of-largest", func() {
					m := newFingerprints(want.IPv4)[rules.Backends]
					if others, err := lookupElements(b.Context(), n.reader.conn, ir.IPv4, rules.Backends, want.IPv4, &m); err != nil || len(others) > 0 || len(m.sums) != len(set.Elements) {
						b.Fatal(len(others), len(m.sums), err)
					}
				})
			}
			for what, times := range took {
				b.ReportMetric(median(times)/1e6, what+"-ms")
			}
			b.ReportMetric(float64(elements), "elements")
			b.ReportMetric(float64(len(set.Elements)), "largest")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// processorTime returns the CPU time of this process.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

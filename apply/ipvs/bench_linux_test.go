package ipvs

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// large returns the Programs of a node with n Services of five endpoints.
func large(n int) ir.Programs {
	p := nftest.Large(n)
	for i := range p.Services {
		p.Services[i].Pools[0].Backends = p.Services[i].Pools[0].Backends[:5]
	}
	six := &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)}
	p.Node.Mode, six.Node.Mode = ir.ModeIPVS, ir.ModeIPVS
	return ir.NewPrograms(p, six)
}

// empty runs f with a Dataplane in a new namespace.
func empty(b *testing.B, f func(d *Dataplane)) {
	b.Helper()
	applytest.RequireRoot(b)
	if !applytest.HaveIPVS(b) {
		b.Skip("the kernel has no ip_vs")
	}
	ns, err := applytest.NewNamespace("ipvs")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		d, err := Open(b.Context(), apply.Options{IPTables: "nft"})
		if err != nil {
			return err
		}
		defer d.Close()
		f(d)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// load applies the Programs.
func load(b *testing.B, d *Dataplane, want ir.Programs) {
	b.Helper()
	if err := d.Read(b.Context(), ir.Programs{}); err != nil {
		b.Fatal(err)
	}
	result, err := d.Commit(b.Context(), d.Plan(want))
	if err != nil || len(result.Refused) > 0 {
		b.Fatal(err, result.Refused)
	}
}

// BenchmarkFullLoad applies 10,000 Services with their sets, rules and addresses to an empty
// kernel. As a lower bound, ipvsadm loads only the virtual servers.
func BenchmarkFullLoad(b *testing.B) {
	want := large(10_000)
	b.Run("netlink", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			b.StopTimer()
			empty(b, func(d *Dataplane) {
				if err := d.Read(b.Context(), ir.Programs{}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				load(b, d, want)
				b.StopTimer()
			})
		}
	})
	b.Run("ipvsadm -R", func(b *testing.B) {
		var text bytes.Buffer
		if err := rules.Lower(want.IPv4).WriteIPVS(&text); err != nil {
			b.Fatal(err)
		}
		for range b.N {
			b.StopTimer()
			empty(b, func(*Dataplane) {
				cmd := exec.Command("ipvsadm", "-R")
				cmd.Stdin = bytes.NewReader(text.Bytes())
				b.StartTimer()
				out, err := cmd.CombinedOutput()
				b.StopTimer()
				if err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
			})
		}
	})
}

// timed measures the kernel's time.
type timed struct {
	kernel
	took time.Duration
}

func (k *timed) do(ctx context.Context, requests []request) ([]failure, error) {
	defer k.count(time.Now())
	return k.kernel.do(ctx, requests)
}

func (k *timed) dests(ctx context.Context, key ir.Match) (map[netip.AddrPort]dest, error) {
	defer k.count(time.Now())
	return k.kernel.dests(ctx, key)
}

func (k *timed) count(since time.Time) { k.took += time.Since(since) }

func median(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds())
}

// among is a node with many Services, of which one endpoint changes and changes back.
type among struct {
	d        *Dataplane
	k        *timed
	versions [2]*ir.Service
	took     []time.Duration
	inKernel []time.Duration
}

func newAmong(b *testing.B, d *Dataplane, services int) *among {
	b.Helper()
	want := large(services)
	one := want.IPv4.Services[services/2]
	other := one
	other.Pools = slices.Clone(one.Pools)
	other.Pools[0].Backends = slices.Clone(one.Pools[0].Backends)
	other.Pools[0].Backends[2].AddrPort = nftest.AddrPort(ir.IPv4, "10.244.2.11:8080")
	load(b, d, want)
	a := &among{d: d, k: &timed{kernel: d.drains.k}, versions: [2]*ir.Service{&other, &one}}
	d.drains.k = a.k
	return a
}

// change applies the i-th change.
func (a *among) change(b *testing.B, i int) {
	b.Helper()
	change := ir.Change{Name: a.versions[0].Name, Old: a.versions[1-i%2], New: a.versions[i%2]}
	start := time.Now()
	a.k.took = 0
	plan := a.d.PlanChanges(a.d.Applied().From(ir.Changes{IPv4: []ir.Change{change}}))
	if _, err := a.d.Commit(context.Background(), plan); err != nil {
		b.Fatal(err)
	}
	a.took, a.inKernel = append(a.took, time.Since(start)), append(a.inKernel, a.k.took)
}

// BenchmarkOneEndpoint changes one endpoint of one Service and back. It alternates between few and
// many Services, so that other load on the machine affects both. It reports medians: ns, and in
// them kernel-ns between requests to ip_vs and the replies.
func BenchmarkOneEndpoint(b *testing.B) {
	const few, many = 1000, 20_000
	empty(b, func(d *Dataplane) {
		amongFew := newAmong(b, d, few)
		empty(b, func(d *Dataplane) {
			amongMany := newAmong(b, d, many)
			for i := 0; b.Loop(); i++ {
				amongFew.change(b, i)
				amongMany.change(b, i)
			}
			b.ReportMetric(0, "ns/op") // of both together, which is meaningless
			for n, a := range map[int]*among{few: amongFew, many: amongMany} {
				b.ReportMetric(median(a.took), fmt.Sprintf("ns/%d", n))
				b.ReportMetric(median(a.inKernel), fmt.Sprintf("kernel-ns/%d", n))
			}
		})
	})
}

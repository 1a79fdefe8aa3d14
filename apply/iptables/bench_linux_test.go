package iptables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// BenchmarkKernel loads n Services with five backends into an empty namespace. It then changes one
// backend of one Service from the known state, like the daemon. The lower bound of that change is a
// run of the tool that commits nothing.
func BenchmarkKernel(b *testing.B) {
	applytest.RequireRoot(b)
	for _, v := range variants {
		for _, n := range []int{1_000, 5_000, 10_000} {
			p := large(n, 5)
			want := lower(ir.NewPrograms(p))
			b.Run(fmt.Sprintf("%s/services=%d/load", v, n), func(b *testing.B) {
				for b.Loop() {
					inEmpty(b, v, func(t *Dataplane) {
						commit(b, t, rules.Rulesets{}, want)
					})
				}
			})
			b.Run(fmt.Sprintf("%s/services=%d/one", v, n), func(b *testing.B) {
				inEmpty(b, v, func(t *Dataplane) {
					commit(b, t, rules.Rulesets{}, want)
					t.applied.Replace(ir.NewPrograms(p))
					t.PlanChanges(ir.Changes{})
					versions := [2]*ir.Service{service(changed(p)), service(p)}
					var planning time.Duration
					for i := 0; b.Loop(); i++ {
						s := versions[i%2]
						start := time.Now()
						plan := t.PlanChanges(t.Applied().From(ir.Changes{IPv4: []ir.Change{{Name: s.Name, New: s}}}))
						planning += time.Since(start)
						if _, err := t.Commit(b.Context(), plan); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(planning.Nanoseconds())/float64(b.N), "plan-ns/op")
				})
			})
			b.Run(fmt.Sprintf("%s/services=%d/nothing", v, n), func(b *testing.B) {
				inEmpty(b, v, func(t *Dataplane) {
					commit(b, t, rules.Rulesets{}, want)
					for b.Loop() {
						if _, err := run.Run(b.Context(), strings.NewReader("*nat\nCOMMIT\n"), tool(ir.IPv4, v, "restore"), "--noflush"); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}

func commit(b *testing.B, t *Dataplane, have, want rules.Rulesets) {
	if _, err := t.Commit(b.Context(), t.Difference(have, want)); err != nil {
		b.Fatal(err)
	}
}

func inEmpty(b *testing.B, v Variant, f func(*Dataplane)) {
	b.StopTimer()
	defer b.StartTimer()
	b.Setenv("XTABLES_LOCKFILE", filepath.Join(b.TempDir(), "lock"))
	applytest.InNamespace(b, func() {
		t, err := Open(b.Context(), apply.Options{IPTables: string(v)})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		f(t)
		b.StopTimer()
	})
}

// large returns n Services, each with a ClusterIP and backends.
func large(n, backends int) *ir.Program {
	p := program(ir.IPv4, 0, "192.0.2.11", "10.96.0.0", "10.128.0.0", "203.0.113.0")
	p.Node.Detector.Prefix = netip.MustParsePrefix("10.128.0.0/9")
	cluster, pod := netip.MustParseAddr("10.64.0.0"), netip.MustParseAddr("10.128.0.0")
	for i := range n {
		cluster = cluster.Next()
		s := ir.Service{Name: ir.Name{Namespace: "default", Name: fmt.Sprintf("s%d", i)}}
		port := ir.ServicePort{Service: s.Name, Protocol: ir.TCP}
		pool := ir.Pool{Port: port}
		for range backends {
			pod = pod.Next()
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(pod, 8080)})
		}
		s.Pools = []ir.Pool{pool}
		s.Frontends = []ir.Frontend{{Match: ir.Match{Addr: cluster, Protocol: ir.TCP, Port: 80}, Port: port,
			Routes: []ir.Route{{From: ir.Pods}, {From: ir.Any, SNAT: true}}}}
		p.Services = append(p.Services, s)
	}
	return p
}

// service returns the Service that changes.
func service(p *ir.Program) *ir.Service { return &p.Services[len(p.Services)/2] }

// changed returns p with one backend moved.
func changed(p *ir.Program) *ir.Program {
	q := *p
	q.Services = append([]ir.Service(nil), p.Services...)
	s := service(&q)
	pool := s.Pools[0]
	pool.Backends = append([]ir.Backend(nil), pool.Backends...)
	pool.Backends[2].AddrPort = netip.AddrPortFrom(netip.MustParsePrefix("10.255.1.1/32").Addr(), 8080)
	s.Pools = []ir.Pool{pool}
	return &q
}

package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// BenchmarkEventBeside is how long an endpoint of one Service takes while others change once a
// second: a Service of 2,000 ports with session affinity loses an endpoint and gets another one, or
// 40,000 backends move. It reports the median and the longest time in milliseconds.
func BenchmarkEventBeside(b *testing.B) {
	const services, rounds = 9000, 20
	ports := func(endpoints int, affinity bool) func(*watch.Store, byte) {
		return func(store *watch.Store, version byte) {
			svc, slice := benchService(services), benchSlice(services, version)
			svc.AffinityIP = affinity
			svc.Ports, slice.Ports, slice.Endpoints = nil, nil, nil
			for i := range 2000 {
				name := fmt.Sprintf("p%04d", i)
				svc.Ports = append(svc.Ports, snapshot.ServicePort{Name: name, Protocol: "TCP", Port: int32(1000 + i)})
				slice.Ports = append(slice.Ports, snapshot.EndpointPort{Name: name, HasName: true, Protocol: "TCP", Port: int32(1000 + i), HasPort: true})
			}
			for i := range endpoints {
				net := byte(110)
				if i == 0 || !affinity {
					net += version
				}
				slice.Endpoints = append(slice.Endpoints, snapshot.Endpoint{Addr: benchAddr(net, i), Ready: true, Serving: true})
			}
			store.Set(svc)
			store.Set(slice)
		}
	}
	for _, c := range []struct {
		what   string
		change func(*watch.Store, byte)
	}{
		{"nothing", func(*watch.Store, byte) {}},
		{"affinity", ports(5, true)},
		{"ports", ports(20, false)},
		{"services", func(store *watch.Store, version byte) {
			for i := range 8000 {
				s := benchSlice(1000+i, version)
				for j := range s.Endpoints[:4] {
					s.Endpoints[j].Addr = benchAddr(120+10*version+byte(j), 1000+i)
				}
				store.Set(s)
			}
		}},
	} {
		b.Run(c.what, func(b *testing.B) {
			store, synced := runLoop(b, services)
			c.change(store, 0)
			applied, ended := make(chan struct{}, 1), make(chan struct{})
			var syncs []time.Duration
			go func() {
				for {
					select {
					case <-ended:
						return
					case s := <-synced:
						if s.Err != nil {
							b.Error(s.Err)
						}
						if s.Done.Operations.Total() > 100 && s.Kind == reconcile.Change {
							syncs = append(syncs, s.Ended.Sub(s.Began))
						}
						if slices.ContainsFunc(s.Work.Changes.IPv4, func(c ir.Change) bool { return c.Name == benchName(1) }) {
							applied <- struct{}{}
						}
					}
				}
			}()
			time.Sleep(5 * time.Second)
			var took []time.Duration
			for b.Loop() {
				for i := range rounds {
					began := time.Now()
					c.change(store, byte(1-i%2))
					time.Sleep(time.Duration(i*10) * time.Millisecond)
					start := time.Now()
					store.Set(benchSlice(1, byte(1-i%2)))
					<-applied
					took = append(took, time.Since(start))
					time.Sleep(time.Second - time.Since(began))
				}
			}
			close(ended)
			slices.Sort(took)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(took[len(took)/2].Seconds()*1000, "ms-median")
			b.ReportMetric(took[len(took)-1].Seconds()*1000, "ms-max")
			if len(syncs) > 0 {
				b.ReportMetric(float64(len(syncs))/rounds, "syncs")
				b.ReportMetric(slices.Max(syncs).Seconds()*1000, "ms-sync")
			}
		})
	}
}

// runLoop keeps a namespace at what a Store with Services says.
func runLoop(b *testing.B, services int) (*watch.Store, <-chan *reconcile.Sync) {
	b.Helper()
	store := watch.NewStore(time.Now)
	for i := range services {
		store.Set(benchService(i))
		store.Set(benchSlice(i, 0))
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	f := daemon.NewSource(reviewtest.ParseConfig(b, ir.ModeNFTables, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n")), store, compiler.Facts{NodeName: "node1"}, log)
	ns := applytest.RequireNamespace(b)
	ctx, cancel := context.WithCancel(b.Context())
	var d apply.Dataplane
	var drift <-chan struct{}
	if err := ns.Do(func() (err error) {
		if d, err = host.Open(ctx, ir.ModeNFTables, apply.Options{Log: log}); err == nil {
			drift, err = d.Drift(ctx)
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	synced := make(chan *reconcile.Sync, 1)
	l := &reconcile.Reconciler{Writer: reconcile.Writer{Dataplane: d}, Schedule: reconcile.Schedule{Retry: time.Minute, Full: time.Hour}, Source: f, Drift: drift,
		Report: func(reconcile.State) {}, Synced: func(s *reconcile.Sync) { synced <- s }, Now: time.Now, After: time.After}
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done; d.Close() })
	return store, synced
}

func benchName(i int) ir.Name { return ir.Name{Namespace: "ns", Name: fmt.Sprintf("s%05d", i)} }

func benchAddr(net byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)})
}

func benchService(i int) *snapshot.Service {
	ip := benchAddr(96, i).String()
	return &snapshot.Service{Name: benchName(i), Type: "ClusterIP", ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []string{"IPv4"},
		Ports: []snapshot.ServicePort{{Protocol: "TCP", Port: 80}}}
}

// benchSlice has five endpoints; the last is one of two.
func benchSlice(i int, version byte) *snapshot.EndpointSlice {
	s := &snapshot.EndpointSlice{Name: benchName(i), Service: benchName(i), AddressType: "IPv4",
		Ports: []snapshot.EndpointPort{{HasName: true, Protocol: "TCP", Port: 8080, HasPort: true}}}
	for j := range 5 {
		net := byte(100 + j)
		if j == 4 {
			net += version
		}
		s.Endpoints = append(s.Endpoints, snapshot.Endpoint{Addr: benchAddr(net, i), Ready: true, Serving: true})
	}
	return s
}

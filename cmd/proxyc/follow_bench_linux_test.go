package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
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

// BenchmarkEvent is how long it takes from an EndpointSlice with another
// endpoint to the rules in the kernel, through the whole daemon, among few and
// many Services.
func BenchmarkEvent(b *testing.B) {
	for _, services := range []int{1000, 50_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			store, synced := runLoop(b, services)
			wait := func() {
				for s := range synced {
					if s.Err != nil {
						b.Fatal(s.Err)
					}
					if s.Done.Operations.Total() > 0 {
						return
					}
				}
			}
			version := byte(0)
			// Each change is in one sync; others, as the comparison after the
			// first load, may come between.
			change := func() {
				version = 1 - version
				store.Set(benchSlice(services/2, version))
				wait()
			}
			wait()
			change()
			b.ReportAllocs()
			for b.Loop() {
				change()
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

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// sameAddrs compares addresses by value.
var sameAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

// fileFollower is a follower of a file.
type fileFollower struct {
	*follower
	t     *testing.T
	files *watch.Files
	said  *bytes.Buffer
}

func newFileFollower(t *testing.T) *fileFollower {
	store := watch.NewStore(time.Now)
	said := &bytes.Buffer{}
	log := slog.New(slog.NewTextHandler(said, nil))
	return &fileFollower{
		follower: newFollower(testConfig(ir.ModeNFTables), store, compiler.Facts{NodeName: "node1"}, log, func(watch.Event) {}),
		t:        t, said: said,
		files: &watch.Files{Paths: []string{filepath.Join(t.TempDir(), "cluster.yaml")}, Store: store, Log: log, Report: func(diag.List, []*snapshot.Invalid) {}},
	}
}

// testConfig returns a complete configuration of a mode.
func testConfig(mode ir.Mode) *config.Config {
	cfg := config.Default()
	cfg.Mode = string(mode)
	cfg.ClusterCIDR = "10.244.0.0/16,fd00:10:244::/48"
	config.Complete(cfg)
	return cfg
}

// set sets the cluster to the objects in a text.
func (f *fileFollower) set(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.files.Paths[0], []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if err := f.files.Read(); err != nil {
		f.t.Fatal(err)
	}
}

const nodeYAML = "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.%d}]}\n---\n"

func TestFollower(t *testing.T) {
	f := newFileFollower(t)
	names := func(changes []ir.Change) (names []string) {
		for _, c := range changes {
			names = append(names, c.Name.Name)
		}
		return names
	}
	for _, step := range []struct {
		name, cluster string
		all           bool
		changes       []string
	}{
		{"first", applytest.Services("a", "b"), true, nil},
		{"nothing", applytest.Services("a", "b"), false, nil},
		{"one more, one less", applytest.Services("b", "c"), false, []string{"a", "c"}},
		{"the node comes", fmt.Sprintf(nodeYAML, 1) + applytest.Services("b", "c"), true, nil},
		{"the node moves", fmt.Sprintf(nodeYAML, 2) + applytest.Services("b"), true, nil},
	} {
		f.set(step.cluster)
		w := f.Take(reconcile.Change)
		if w.All != step.all {
			t.Errorf("%s: all: %t, want %t", step.name, w.All, step.all)
		}
		if diff := cmp.Diff(step.changes, names(w.Changes.IPv4)); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", step.name, diff)
		}
		snap := snapshot.New()
		manifest.Decode(snap, "cluster", []byte(step.cluster))
		fresh, _ := compiler.Compile(f.cfg, snap, f.facts)
		if diff := cmp.Diff(fresh, f.compiler.Programs(), sameAddrs); diff != "" {
			t.Errorf("%s: not what a fresh compilation gives (-want +got):\n%s", step.name, diff)
		}
	}
}

// Addresses of the node are read when they change, and in a full sync. Only those that affect the
// node's part of a Program matter.
func TestFollowerInterfaces(t *testing.T) {
	f := newFileFollower(t)
	eth0 := func(addrs ...string) []compiler.Interface {
		i := compiler.Interface{Name: "eth0"}
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
		}
		return []compiler.Interface{i}
	}
	all := func(what string, k reconcile.Kind, want bool) {
		t.Helper()
		if got := f.Take(k).All; got != want {
			t.Errorf("%s: all is compiled: %t, want %t", what, got, want)
		}
	}
	f.set(applytest.Services("a"))
	f.interfaces = func() ([]compiler.Interface, error) { return eth0("192.0.2.1/24"), nil }
	all("first", reconcile.Full, true)
	all("nothing", reconcile.Full, false)
	f.interfaces = func() ([]compiler.Interface, error) { return eth0("192.0.2.1/24", "192.0.2.2/24"), nil }
	all("nothing reported", reconcile.Change, false)
	all("found by a full sync", reconcile.Full, true)
	f.store.SetInterfaces(eth0("192.0.2.1/24"))
	select {
	case <-f.Changed():
	default:
		t.Error("an address went: not reported")
	}
	all("an address went", reconcile.Change, true)
	f.store.SetInterfaces(append(eth0("192.0.2.1/24"), compiler.Interface{Name: "pod0", Addrs: eth0("192.0.2.1/32")[0].Addrs}))
	all("the same address on another interface", reconcile.Change, false)
	f.interfaces = func() ([]compiler.Interface, error) { return nil, errors.New("no") }
	all("not readable", reconcile.Full, false)
	if len(f.facts.Interfaces) != 2 {
		t.Error("interfaces that cannot be read count as none")
	}
}

// Interfaces that could not be read are read again, without a further change of an address.
func TestFollowerReadsInterfacesAgain(t *testing.T) {
	f := newFileFollower(t)
	f.set(applytest.Services("a"))
	f.Take(reconcile.Full)
	failed := false
	f.interfaces = func() ([]compiler.Interface, error) {
		if !failed {
			failed = true
			return nil, errors.New("no buffer space available")
		}
		return []compiler.Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.watchInterfaces(ctx) }()
	defer func() { cancel(); <-done }()
	select {
	case <-f.Changed():
	case <-time.After(2 * time.Minute):
		t.Fatal("not read again")
	}
	if !f.Take(reconcile.Change).All {
		t.Error("the address is not applied")
	}
}

// Changes in a failed sync are kept.
func TestFollowerWaits(t *testing.T) {
	f := newFileFollower(t)
	early := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.addWaiting(watch.Changes{Since: early, ServiceEvents: 1, Triggers: []watch.Trigger{{Family: ir.IPv4, At: early}}})
	f.addWaiting(watch.Changes{Since: early.Add(time.Second), ServiceEvents: 2})
	got := f.takeWaiting()
	if !got.Since.Equal(early) || got.ServiceEvents != 3 || len(got.Triggers) != 1 {
		t.Errorf("waiting: %+v", got)
	}
	if rest := f.takeWaiting(); !rest.Since.IsZero() || rest.ServiceEvents != 0 {
		t.Errorf("still waiting: %+v", rest)
	}
}

// writerFunc is a Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A blocked log does not block the Store, which probes use, too.
func TestLogWithoutTheStore(t *testing.T) {
	store := watch.NewStore(time.Now)
	written := 0
	log := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		written++
		free := make(chan struct{})
		go func() { store.Pending(); close(free) }()
		select {
		case <-free:
		case <-time.After(2 * time.Minute):
			t.Error("the Store waits for the log")
		}
		return len(p), nil
	}), nil))
	f := newFollower(testConfig(ir.ModeNFTables), store, compiler.Facts{NodeName: "node1"}, log, func(watch.Event) {})
	for _, name := range []string{"a", "b"} { // the second one loses its address
		store.Set(&snapshot.Service{Name: ir.Name{Namespace: "ns", Name: name}, Type: "ClusterIP", ClusterIP: "10.96.0.10",
			ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []string{"IPv4"}, Ports: []snapshot.ServicePort{{Protocol: "TCP", Port: 80}}})
	}
	f.Take(reconcile.Full)
	if written == 0 {
		t.Error("nothing was found")
	}
}

// A slow reading of the node's interfaces does not replace the result of a later one.
func TestReadingsInOrder(t *testing.T) {
	store := watch.NewStore(time.Now)
	f := newFollower(testConfig(ir.ModeNFTables), store, compiler.Facts{}, slog.New(slog.DiscardHandler), func(watch.Event) {})
	began, end := make(chan struct{}), make(chan struct{})
	name := "old"
	f.interfaces = func() ([]compiler.Interface, error) {
		read := []compiler.Interface{{Name: name}}
		if name == "old" {
			name = "new"
			close(began)
			<-end
		}
		return read, nil
	}
	var first, second sync.WaitGroup
	first.Go(func() { f.readInterfaces() })
	<-began
	later := make(chan struct{})
	second.Go(func() { f.readInterfaces(); close(later) })
	select {
	case <-later:
		t.Error("the second reading ended before the first one was stored")
	case <-time.After(50 * time.Millisecond):
	}
	close(end)
	first.Wait()
	second.Wait()
	store.Follow(func(_ *snapshot.Snapshot, c watch.Changes) {
		if len(c.Interfaces) != 1 || c.Interfaces[0].Name != "new" {
			t.Errorf("got %v, want the newer interfaces", c.Interfaces)
		}
	})
}

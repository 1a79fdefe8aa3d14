// The race detector would change the counts.
//go:build !race

package main

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	bench "github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// countedCluster is the cluster of all counts.
var countedCluster = bench.Cluster{Services: 1000, Endpoints: 5, DualStack: true}

// countedRounds is the number of repetitions of each change. Allocations are the least of them.
const countedRounds = 3

// countedPlane is a dataplane whose work is counted.
type countedPlane struct {
	writer *reconcile.Writer
	bytes  func() int // bytes sent to the kernel since the last call
	// holds counts the objects in the kernel.
	holds func(ctx context.Context) (counts, error)
}

// countedPlanes open the dataplanes that a daemon writes.
var countedPlanes = []struct {
	name string
	mode ir.Mode
	open func(ctx context.Context) (*countedPlane, error)
}{
	{"nftables", ir.ModeNFTables, countNFTables},
	{"iptables-nft", ir.ModeIPTables, countIPTables(iptables.NFT)},
	{"iptables-legacy", ir.ModeIPTables, countIPTables(iptables.Legacy)},
}

// committed is a Dataplane that keeps what is committed.
type committed struct {
	apply.Dataplane
	plans []apply.Plan
}

func (c *committed) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	c.plans = append(c.plans, p)
	return c.Dataplane.Commit(ctx, p)
}

// take sums up the plans that were committed since the last call.
func (c *committed) take(size func(apply.Plan) int) (n int) {
	for _, p := range c.plans {
		n += size(p)
	}
	c.plans = nil
	return n
}

func countNFTables(ctx context.Context) (*countedPlane, error) {
	t, err := nftables.Open(ctx, apply.Options{})
	if err != nil {
		return nil, err
	}
	committed := &committed{Dataplane: t}
	return &countedPlane{
		writer: &reconcile.Writer{Dataplane: committed},
		bytes:  func() int { return committed.take(func(p apply.Plan) int { return p.(*nftables.Plan).Bytes() }) },
		holds: func(ctx context.Context) (counts, error) {
			tables, err := t.Tables(ctx)
			c := counts{}
			for _, table := range ir.Present(tables.PerFamily) {
				c["chains"] += len(table.Chains)
				for i := range table.Chains {
					c["rules"] += len(table.Chains[i].Rules)
				}
				c["sets"] += len(table.Sets)
				for i := range table.Sets {
					c["elements"] += len(table.Sets[i].Elements)
				}
			}
			return c, err
		},
	}, nil
}

func countIPTables(v iptables.Variant) func(context.Context) (*countedPlane, error) {
	return func(ctx context.Context) (*countedPlane, error) {
		t, err := iptables.Open(ctx, apply.Options{IPTables: string(v)})
		if err != nil {
			return nil, err
		}
		committed := &committed{Dataplane: t}
		return &countedPlane{
			writer: &reconcile.Writer{Dataplane: committed},
			bytes:  func() int { return committed.take(t.Bytes) },
			holds: func(ctx context.Context) (counts, error) {
				sets, err := t.Rulesets(ctx)
				c := counts{}
				for _, r := range ir.Present(sets.PerFamily) {
					for _, table := range r.Tables() {
						c["chains"] += len(table.Chains)
						for i := range table.Chains {
							c["rules"] += len(table.Chains[i].Rules)
						}
					}
				}
				return c, err
			},
		}, nil
	}
}

// TestCounts compares the cost of a fixed cluster with the recorded one: what is sent to the
// kernel, what the kernel then contains, and allocations. -update records.
func TestCounts(t *testing.T) {
	applytest.RequireRoot(t)
	found := recorded{Go: goRelease(runtime.Version()), Counts: map[string]map[string]counts{}}
	for _, mode := range ir.Modes() {
		found.Counts["text of mode "+string(mode)] = map[string]counts{"load": countText(t, mode)}
	}
	for _, plane := range countedPlanes {
		t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
		applytest.InNamespace(t, func() {
			opened, err := plane.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			found.Counts["kernel, "+plane.name] = opened.count(t, plane.mode)
		})
	}
	found.check(t)
}

// countText counts what compiling for a mode and writing its texts takes.
func countText(t *testing.T, mode ir.Mode) counts {
	cfg := countedConfig(t, mode)
	snap, diags := reviewtest.Decode(listOf(t, slices.Collect(countedCluster.Objects())))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	var all []counts
	for range countedRounds {
		var written counter
		n := mallocs(func() {
			programs, _ := compiler.Compile(cfg, snap, compiler.Facts{NodeName: "node1"})
			for _, o := range review.Modes[mode].Lower(programs).Outputs() {
				must(t, o.Write(&written))
			}
		})
		all = append(all, counts{allocated: n, "bytes": int(written)})
	}
	return typical(t, all)
}

// counter counts what is written to it.
type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func countedConfig(t *testing.T, mode ir.Mode) *config.Config {
	return reviewtest.ParseConfig(t, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"clusterCIDR: 10.128.0.0/9,fd00:10:128::/48\niptables: {localhostNodePorts: false}\n"))
}

func countedFollower(t *testing.T, mode ir.Mode) *fileSource {
	store, log := watch.NewStore(time.Now), slog.New(slog.DiscardHandler)
	return &fileSource{
		Source: daemon.NewSource(countedConfig(t, mode), store, compiler.Facts{NodeName: "node1"}, log), t: t,
		files: &watch.Files{Paths: []string{filepath.Join(t.TempDir(), "cluster.yaml")}, Store: store, Log: log, Report: func(diag.List, []*snapshot.Invalid) {}},
	}
}

// fileSource is what a daemon that follows a file compiles.
type fileSource struct {
	reconcile.Source
	t     *testing.T
	files *watch.Files
}

// set makes the cluster what a text says.
func (f *fileSource) set(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.files.Paths[0], []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if err := f.files.Read(); err != nil {
		f.t.Fatal(err)
	}
}

func listOf(t *testing.T, objects []any) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, bench.WriteList(&b, slices.Values(objects)))
	return b.Bytes()
}

// count loads the cluster as a daemon does, changes it and changes it back.
func (p *countedPlane) count(t *testing.T, mode ir.Mode) map[string]counts {
	c, f := countedCluster, countedFollower(t, mode)
	before := slices.Collect(c.Objects())
	other := c.Service(c.Services + 1)
	with := append(slices.Clone(before), other)
	for _, s := range c.Slices(c.Services + 1) {
		with = append(with, s)
	}
	list, moved, more := string(listOf(t, before)), string(listOf(t, move(before, c.Services/2+1))), string(listOf(t, with))

	all, holds := map[string][]counts{}, map[string]counts{}
	sync := func(name string, kind reconcile.Kind, text string) {
		f.set(text)
		all[name] = append(all[name], p.sync(t, f, kind))
		if holds[name] == nil {
			var err error
			if holds[name], err = p.holds(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	sync("load", reconcile.Full, list)
	for range countedRounds {
		sync("one endpoint changed", reconcile.Change, moved)
		sync("one endpoint changed back", reconcile.Change, list)
		sync("one Service added", reconcile.Change, more)
		sync("one Service removed", reconcile.Change, list)
	}
	out := map[string]counts{}
	for name := range all {
		out[name] = typical(t, all[name])
		maps.Copy(out[name], holds[name])
	}
	return out
}

// move returns the objects with another address for the first endpoint of a Service.
func move(objects []any, service int) []any {
	of := countedCluster.Service(service)
	i := slices.IndexFunc(objects, func(o any) bool {
		s, ok := o.(*discoveryv1.EndpointSlice)
		return ok && s.Namespace == of.Namespace && s.Labels[discoveryv1.LabelServiceName] == of.Name
	})
	slice := objects[i].(*discoveryv1.EndpointSlice).DeepCopy()
	slice.Endpoints[0].Addresses[0] = "10.255.0.1"
	moved := slices.Clone(objects)
	moved[i] = slice
	return moved
}

// sync counts one sync of what changed.
func (p *countedPlane) sync(t *testing.T, f *fileSource, kind reconcile.Kind) counts {
	t.Helper()
	var done reconcile.Done
	var err error
	allocations := mallocs(func() {
		if w := f.Take(kind); kind == reconcile.Full {
			done, err = p.writer.Replace(t.Context(), w.Programs)
		} else {
			done, err = p.writer.Change(t.Context(), &w.Changes)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Refused) > 0 {
		t.Fatalf("the kernel refuses %v", done.Refused)
	}
	n := done.Operations
	return counts{allocated: allocations, "added": n.Added, "changed": n.Changed, "removed": n.Removed, "bytes": p.bytes()}
}

// mallocs returns how many objects a call allocates, on one processor and
// without collections.
func mallocs(do func()) int {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.Mallocs - before.Mallocs)
}

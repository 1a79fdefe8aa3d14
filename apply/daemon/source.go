package daemon

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// follower compiles what changes in a Store: it is the Source of the daemon's
// Reconciler.
type follower struct {
	cfg   *config.Config
	store *watch.Store
	facts compiler.Facts
	// interfaces reads the node's network interfaces.
	interfaces func() ([]compiler.Interface, error)
	log        *slog.Logger

	compiler *compiler.Compiler
	waiting  watch.Changes // taken, and not in force yet
	findings *findings
}

// NewSource compiles, for a configuration and what is known of the node, what
// changes in a Store.
func NewSource(cfg *config.Config, store *watch.Store, facts compiler.Facts, log *slog.Logger) reconcile.Source {
	return newFollower(cfg, store, facts, log, func(watch.Event) {})
}

// newFollower makes a follower that has seen nothing yet. send tells of Services
// in the cluster.
func newFollower(cfg *config.Config, store *watch.Store, facts compiler.Facts, log *slog.Logger, send func(watch.Event)) *follower {
	return &follower{cfg: cfg, store: store, facts: facts, log: log, findings: newFindings(log, time.Now, send),
		interfaces: func() ([]compiler.Interface, error) { return facts.Interfaces, nil }}
}

func (f *follower) Changed() <-chan struct{} { return f.store.Changed() }

// Take compiles the Services that changed; all of them at first, and when the
// node changed. A full sync looks at the interfaces, too.
func (f *follower) Take(k reconcile.Kind) (w reconcile.Work) {
	if k == reconcile.Full {
		f.readInterfaces()
	}
	var tell func() // of what was found; not before the Store is free: a log may keep whoever writes waiting
	f.store.Follow(func(snap *snapshot.Snapshot, c watch.Changes) {
		f.wait(c)
		if c.Interfaces != nil {
			f.facts.Interfaces = c.Interfaces
		}
		f.keepPodCIDRs(snap)
		moved := false
		if c.Hosted != nil {
			f.facts.HNSEndpoints = c.Hosted
			moved = f.compiler != nil && f.compiler.SetHNSEndpoints(c.Hosted)
		}
		if f.compiler == nil || c.Node || moved || c.Interfaces != nil && f.compiler.NodeDiffers(f.facts) {
			w.All = true
			f.compiler = compiler.New(f.cfg, snap, f.facts)
			found := f.compiler.Findings()
			tell = func() { f.findings.replace(found) }
		} else {
			var found compiler.Findings
			w.Changes, found = f.compiler.Update(c.Services)
			tell = func() { f.findings.update(found) }
		}
	})
	tell()
	if k == reconcile.Full || w.All {
		w.Programs = f.compiler.Programs()
	} else {
		w.Programs = f.compiler.WithoutServices()
	}
	return w
}

// keepPodCIDRs remembers the node's pod ranges: if they go while the daemon
// runs, pods are still better told from others by them than not at all.
func (f *follower) keepPodCIDRs(snap *snapshot.Snapshot) {
	if cidrs := podCIDRs(snap, f.facts.NodeName); len(cidrs) > 0 {
		f.facts.PodCIDRs = cidrs
	}
}

func podCIDRs(snap *snapshot.Snapshot, node string) []netip.Prefix {
	if n := snap.Node(node); n != nil {
		return n.PodCIDRs
	}
	return nil
}

// readInterfaces hands the node's interfaces to the Store.
func (f *follower) readInterfaces() {
	now, err := f.interfaces()
	if err != nil {
		f.log.Error("reading the node's network interfaces", "err", err)
		return
	}
	f.store.SetInterfaces(now)
}

// watchInterfaces reads the interfaces each time an address comes or goes, until ctx ends.
func (f *follower) watchInterfaces(ctx context.Context) {
	if err := node.Watch(ctx, f.readInterfaces); err != nil {
		f.log.Error("changes of the node's addresses will be seen late", "err", err)
	}
}

// wait adds to what is not in force yet.
func (f *follower) wait(c watch.Changes) {
	if f.waiting.Since.IsZero() {
		f.waiting.Since = c.Since
	}
	f.waiting.AddTriggers(c.Triggers...)
	f.waiting.AddArrivals(c.Arrivals...)
	f.waiting.ServiceEvents += c.ServiceEvents
	f.waiting.EndpointEvents += c.EndpointEvents
}

// inForce returns what was waiting and is in force now.
func (f *follower) inForce() watch.Changes {
	c := f.waiting
	f.waiting = watch.Changes{}
	return c
}

// logDiagnostic logs a finding under the name of its object.
func logDiagnostic(log *slog.Logger, d diag.Diagnostic) {
	object := d.Object
	d.Object = ""
	say := log.Warn
	switch d.Severity {
	case diag.Error:
		say = log.Error
	case diag.Info:
		say = log.Debug
	}
	if object == "" {
		say(d.String())
		return
	}
	say(d.String(), "object", object)
}

// withService adds to what is logged which Service it is about, if it is about one.
func withService(args []any, service ir.Name) []any {
	if service == (ir.Name{}) {
		return args
	}
	return append(args, "service", service.String())
}

// latency is how long ago something happened, never negative.
func latency(now, then time.Time) float64 { return max(0, now.Sub(then).Seconds()) }

// brokenObjects are the objects of which the newest version cannot be used.
type brokenObjects struct {
	mu  sync.Mutex
	are []Broken
}

// set sets which objects of a kind are broken, and why.
func (b *brokenObjects) set(kind string, why map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(b.are), func(of Broken) bool { return of.Kind == kind })
	for _, object := range slices.Sorted(maps.Keys(why)) {
		now = append(now, Broken{kind, object, why[object]})
	}
	b.are = now
}

func (b *brokenObjects) report(st *Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	st.Broken = b.are
}

// source starts to fill the Store, and returns a channel that is closed when all
// that there is at first is in it; and one that is closed when it is known that this
// can be read, or after the reason why not: an API server is waited for.
func (d *daemon) source(ctx context.Context, all *sync.WaitGroup) (synced <-chan struct{}, first <-chan error, err error) {
	filled, begun := make(chan struct{}), make(chan error, 1)
	whole := sync.OnceFunc(func() { close(filled) })
	if d.cluster.whole {
		whole()
	}
	if paths := d.Snapshot; len(paths) > 0 {
		name := strings.Join(paths, ", ")
		var seen []*File // that are read, by one goroutine
		files := &watch.Files{Paths: paths, Store: d.store, Log: d.log.Logger, Limit: d.SnapshotLimit, AllowEmpty: d.AllowEmpty, Again: d.snapshotAgain,
			Begin: func() { // before they are read: a change meanwhile is told as one that came after
				seen = nil
				for _, path := range paths {
					seen = append(seen, statFile(d.Files, path))
				}
			},
			Report: func(l diag.List) {
				for _, f := range l {
					logDiagnostic(d.log.Logger, f)
				}
			}}
		told := false
		all.Go(func() {
			err := files.Run(ctx, func(err error) {
				why := ""
				if err == nil {
					d.snapshotFiles.Store(&seen)
					whole()
				} else {
					why = err.Error()
				}
				rejected := d.faults.setRejected(name, why)
				switch {
				case !told:
					told = true
					if err != nil {
						begun <- err
					}
					close(begun)
				case err != nil: // what is in force stays
					d.log.Error("the snapshot stays as it is", "err", err)
				case rejected:
					d.log.Info("the snapshot is read again, and counts")
				}
			})
			if err != nil {
				d.log.Error("changes of the snapshot will not be seen", "err", err)
			}
		})
		d.health.SetNode(&serve.Node{}) // nobody says that it is not eligible
		return filled, begun, nil
	}
	api := &watch.API{NodeName: d.nodeName, Store: d.store, Log: d.log.Logger, NodeState: d.nodeState, Broken: d.broken.set,
		Resync: d.cfg.ConfigSyncPeriod.Duration, Events: d.events, Contact: d.contact, Condition: d.condition}
	watch.Measure(&d.metrics.Client)
	if err := api.Connect(d.cfg.ClientConnection, d.Master, "proxyc/"+d.Version); err != nil {
		return nil, nil, err
	}
	close(begun)
	all.Go(func() { api.Run(ctx, whole) })
	return filled, begun, nil
}

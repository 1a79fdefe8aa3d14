package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// follower compiles the changes of a Store. It is the Source of the daemon's Reconciler.
type follower struct {
	cfg   *config.Config
	store *watch.Store
	facts compiler.Facts
	// interfaces reads the node's network interfaces.
	interfaces func() ([]compiler.Interface, error)
	reading    sync.Mutex // held until the result is stored, so that an older result never replaces a newer one
	// retrying records the error of work that is retried; nil after success.
	retrying func(work string, err error)
	log      *slog.Logger

	compiler *compiler.Compiler
	waiting  watch.Changes // read, and not applied yet
	findings *findings
	again    chan struct{} // contains a token if watchInterfaces is to read the interfaces
}

// NewSource returns a Source that compiles the changes of a Store for a configuration and the facts
// about the node.
func NewSource(cfg *config.Config, store *watch.Store, facts compiler.Facts, log *slog.Logger) reconcile.Source {
	return newFollower(cfg, store, facts, log, func(watch.Event) {})
}

// newFollower returns a follower without state. send sends events about Services.
func newFollower(cfg *config.Config, store *watch.Store, facts compiler.Facts, log *slog.Logger, send func(watch.Event)) *follower {
	return &follower{cfg: cfg, store: store, facts: facts, log: log, findings: newFindings(log, time.Now, send), again: make(chan struct{}, 1),
		interfaces: func() ([]compiler.Interface, error) { return facts.Interfaces, nil }, retrying: func(string, error) {}}
}

func (f *follower) Changed() <-chan struct{} { return f.store.Changed() }

// Take compiles the changed Services. It compiles all Services at first, and when the node changed.
// A full sync also reads the interfaces.
func (f *follower) Take(k reconcile.Kind) (w reconcile.Work) {
	if k == reconcile.Full && !f.readInterfaces() {
		f.readAgain()
	}
	var report func() // reports the findings after the Store is unlocked: writing a log may block
	f.store.Follow(func(snap *snapshot.Snapshot, c watch.Changes) {
		f.addWaiting(c)
		if c.Interfaces != nil {
			f.facts.Interfaces = c.Interfaces
		}
		if cidrs := podCIDRs(snap, f.facts.NodeName); len(cidrs) > 0 {
			f.facts.PodCIDRs = cidrs
		}
		moved := false
		if c.Hosted != nil {
			f.facts.HNSEndpoints = c.Hosted
			moved = f.compiler != nil && f.compiler.SetHNSEndpoints(c.Hosted)
		}
		if f.compiler == nil || c.Node || moved || c.Interfaces != nil && f.compiler.NodeDiffers(f.facts) {
			w.All = true
			f.compiler = compiler.New(f.cfg, snap, f.facts)
			found := f.compiler.Findings()
			report = func() { f.findings.replace(found) }
		} else {
			var found compiler.Findings
			w.Changes, found = f.compiler.Update(c.Services)
			report = func() { f.findings.update(found) }
		}
	})
	report()
	if k == reconcile.Full || w.All {
		w.Programs = f.compiler.Programs()
	} else {
		w.Programs = f.compiler.WithoutServices()
	}
	return w
}

func podCIDRs(snap *snapshot.Snapshot, node string) []netip.Prefix {
	if n := snap.Node(node); n != nil {
		return n.PodCIDRs
	}
	return nil
}

// readInterfaces stores the node's interfaces in the Store, and reports whether it could.
func (f *follower) readInterfaces() bool {
	f.reading.Lock()
	now, err := f.interfaces()
	if err == nil {
		f.store.SetInterfaces(now)
	}
	f.reading.Unlock()
	f.retrying(nodeAddresses, err) // last, so that new addresses are pending before their failure ends
	return err == nil
}

// readAgain makes watchInterfaces read the interfaces.
func (f *follower) readAgain() {
	apply.Wake(f.again)
}

// watchInterfaces reads the interfaces after each change of an address, until ctx ends. After a
// failure it tries again.
func (f *follower) watchInterfaces(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		err := node.Watch(ctx, func(missed error) {
			if missed != nil {
				f.log.Warn("changes of the node's addresses may have been missed: reading all", "err", missed)
			}
			f.readAgain()
		})
		if err != nil {
			f.log.Error("the node's addresses are not watched: changes take effect at the next full sync", "err", err)
		}
	})
	var retry <-chan time.Time
	for failures := 1; ; failures++ {
		select {
		case <-ctx.Done():
			return
		case <-f.again:
		case <-retry:
		}
		if retry = nil; f.readInterfaces() {
			failures = 0
			continue
		}
		retry = time.After(apply.Backoff(failures, apply.FirstRetry, f.cfg.SyncPeriod()))
	}
}

// addWaiting adds changes that are not applied yet.
func (f *follower) addWaiting(c watch.Changes) {
	if f.waiting.Since.IsZero() {
		f.waiting.Since = c.Since
	}
	f.waiting.AddTriggers(c.Triggers...)
	f.waiting.AddArrivals(c.Arrivals...)
	f.waiting.ServiceEvents += c.ServiceEvents
	f.waiting.EndpointEvents += c.EndpointEvents
}

// takeWaiting returns and removes the waiting changes, which are now applied.
func (f *follower) takeWaiting() (c watch.Changes) {
	c, f.waiting = f.waiting, c
	return c
}

// logDiagnostic logs a finding with the name of its object.
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

// withService appends the Service, if set, to log attributes.
func withService(args []any, service ir.Name) []any {
	if service == (ir.Name{}) {
		return args
	}
	return append(args, "service", service.String())
}

// latency returns the seconds since a time, never negative.
func latency(now, then time.Time) float64 { return max(0, now.Sub(then).Seconds()) }

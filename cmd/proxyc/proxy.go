package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	engine "github.com/proxyc/proxyc/apply/daemon"
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

// compareEvery is how often the kernel is compared with what is wanted, if
// nothing else gives a reason to (DMN-21).
const compareEvery = time.Hour

// scheduleOf is when the rules are written, as the configuration's periods mean it.
func scheduleOf(cfg *config.Config) reconcile.Schedule {
	return reconcile.Schedule{Min: cfg.MinSyncPeriod(), Retry: cfg.SyncPeriod(), Full: compareEvery}
}

// proxy keeps the rules until ctx ends: settings of the kernel, what was last
// in force before, and then what the source says.
func (d *daemon) proxy(ctx context.Context) error {
	d.oomScore()
	lock, err := d.lock(ctx)
	if err != nil {
		return orDone(ctx, err)
	}
	defer lock.Release()
	if err := d.settings(); err != nil {
		return err
	}
	dataplane, err := engine.Open(ctx, d.cfg.ProxyMode(), apply.Options{IPTables: variantOf(d.cmd.Variant), LockTimeout: d.cmd.LockTimeout, Log: d.log.Logger})
	if err != nil {
		return orDone(ctx, err)
	}
	defer dataplane.Close()
	drift, err := dataplane.Drift(ctx)
	if err != nil {
		d.log.Error("changes of the rules by others will be seen late", "err", err)
	}
	d.countPackets(dataplane.Counters())
	r := &reconcile.Reconciler{
		Schedule:  scheduleOf(d.cfg),
		Source:    d.follower,
		Dataplane: dataplane,
		Drift:     drift,
		Queued:    d.queued,
		Trim:      debug.FreeOSMemory,
		Now:       time.Now, After: time.After,
	}
	d.boot.put(ctx, r, d.cfg.ProxyMode())
	d.state.setInForce(dataplane.Applied)

	var all sync.WaitGroup
	defer all.Wait()
	sourceCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	synced, err := d.source(sourceCtx, &all)
	if err != nil {
		return err
	}
	d.health.SetNotReady("waiting for the first objects")
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
	}
	if err := d.checkNode(); err != nil {
		return err
	}
	d.up.Store(true)
	all.Go(func() { d.boot.keep(sourceCtx, dataplane.Applied) })
	all.Go(func() { d.follower.watchInterfaces(sourceCtx) })
	cleaned := false
	r.Synced = func(s *reconcile.Sync) {
		d.synced(s)
		if s.Err == nil && !cleaned {
			cleaned = true
			d.removeLeftovers(ctx, dataplane)
			smallHeap(garbageAtRest)
			debug.FreeOSMemory()
		}
	}
	r.Run(ctx)
	return nil
}

// checkNode holds the configuration against the Node, as far as its addresses
// are known (CFG-14, CFG-15).
func (d *daemon) checkNode() error {
	interfaces, err := node.Interfaces()
	if err != nil {
		return err
	}
	var findings diag.List
	d.store.View(func(snap *snapshot.Snapshot) {
		if of, ok := compiler.NodeFamilies(d.cfg, snap.Node(d.nodeName), interfaces); ok {
			findings = d.resolved.CheckNode(of)
		}
	})
	for _, f := range findings {
		logDiagnostic(d.log.Logger, f)
	}
	if findings.HasErrors() {
		return fmt.Errorf("the configuration does not fit Node %s, see the log", d.nodeName)
	}
	return nil
}

// orDone is err, or nothing if it is for ctx having ended.
func orDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// queued notes that a sync was asked for.
func (d *daemon) queued(reconcile.Kind) {
	d.state.queued()
	for _, f := range ir.Families() {
		d.health.Queued(f)
		d.metrics.LastQueued.Of(f).SetToCurrentTime()
	}
	d.countPending()
	d.health.SetNotReady("a change is waiting")
}

// synced does what follows a sync, in the order in which it matters to packets.
func (d *daemon) synced(s *reconcile.Sync) {
	defer d.state.synced(s) // whoever sees it there relies on all of it
	d.count(s)
	if s.Err != nil {
		d.log.Error("the rules are behind", "err", s.Err)
		d.health.SetNotReady(s.Err.Error())
		return
	}
	d.tell(s)
	for _, f := range ir.Families() {
		d.health.Updated(f)
	}
	d.flows(s)
	d.checks.sync(s)
	d.boot.offer()
	if n := len(s.Done.Refused); n > 0 {
		d.health.SetNotReady(fmt.Sprintf("the kernel refuses the rules of %d Services", n))
	} else {
		d.health.SetReady()
	}
}

// tell logs what a sync did.
func (d *daemon) tell(s *reconcile.Sync) {
	if n := total(s.Done.Drift); n > 0 {
		for _, op := range s.Done.DriftFirst {
			d.log.Warn("somebody else changed the rules", "repair", op.Verb.String(), "object", op.Object, "service", op.Service.String())
		}
		d.log.Warn("the rules are repaired", "operations", n)
	}
	for _, r := range s.Done.RefusedNow {
		d.log.Error("the kernel refuses the rules of a Service, which is left out until it changes", "service", r.Service.String(), "err", r.Reason)
	}
	say := d.log.Debug
	if total(s.Done.Operations) > 0 && s.Kind == reconcile.Full {
		say = d.log.Info
	}
	say("synced", "kind", s.Kind.String(), "operations", s.Done.Operations.String(), "took", s.Ended.Sub(s.Began))
}

func total(c apply.Count) int { return c.Added + c.Changed + c.Removed }

// flows deletes the UDP flows that hold on to what is gone.
func (d *daemon) flows(s *reconcile.Sync) {
	for f, p := range touched(s).All() {
		if !conntrack.Concern(ir.NewPrograms(p), s.Done.Gone) {
			continue
		}
		began := time.Now()
		n, err := deleteFlows(p, s.Done.Gone)
		if err != nil {
			d.log.Error("deleting stale UDP flows", "err", err)
		}
		d.metrics.ConntrackSeconds.Of(f).Observe(time.Since(began).Seconds())
		d.metrics.ConntrackDeleted.Of(f).Add(float64(n))
	}
}

// touched are the Programs with those Services alone that the sync changed.
func touched(s *reconcile.Sync) (few ir.Programs) {
	if s.Kind == reconcile.Full {
		return s.Work.Programs
	}
	for f, p := range s.Work.Programs.All() {
		of := &ir.Program{Family: f, Node: p.Node}
		for _, c := range s.Work.Changes.Of(f) {
			if c.New != nil {
				of.Services = append(of.Services, *c.New)
			}
		}
		*few.At(f) = of
	}
	return few
}

// deleteFlows deletes the stale UDP flows to the frontends of a Program, and to those that are gone.
func deleteFlows(p *ir.Program, gone []ir.Match) (int, error) {
	table, err := conntrack.Open(0)
	if err != nil {
		return 0, err
	}
	defer table.Close()
	entries, err := table.UDP(p.Family)
	if err != nil {
		return 0, err
	}
	stale := conntrack.Find(entries, ir.NewPrograms(p), gone)
	entries = entries[:0]
	for _, s := range stale {
		entries = append(entries, s.Entry)
	}
	return table.Delete(entries)
}

// checks are the health check node ports of both families.
type checks struct {
	ir.PerFamily[*serve.HealthChecks]
}

func newChecks(h *serve.Health, events *watch.Events, log *slog.Logger, hosts []string) (c checks) {
	for _, f := range ir.Families() {
		*c.At(f) = &serve.HealthChecks{Family: f, Health: h, Log: log, Hosts: hosts, Failed: func(service ir.Name, port uint16, err error) {
			log.Error("healthCheckNodePort does not answer", "service", service.String(), "port", port, "err", err)
			events.Send(watch.Event{Service: service, Warning: true, Reason: "FailedToStartServiceHealthcheck", Action: "Listen",
				Note: fmt.Sprintf("healthCheckNodePort %d does not answer: %v", port, err)})
		}}
	}
	return c
}

// sync follows what a sync changed.
func (c checks) sync(s *reconcile.Sync) {
	for f, p := range s.Work.Programs.All() {
		if s.Kind != reconcile.Full {
			changed := make(map[ir.Name]*ir.HealthCheck, len(s.Work.Changes.Of(f)))
			for _, one := range s.Work.Changes.Of(f) {
				changed[one.Name] = nil
				if one.New != nil {
					changed[one.Name] = one.New.Health
				}
			}
			c.Of(f).Change(changed)
			continue
		}
		wanted := map[ir.Name]ir.HealthCheck{}
		for j := range p.Services {
			if s := &p.Services[j]; s.Health != nil {
				wanted[s.Name] = *s.Health
			}
		}
		addrs := append([]netip.Addr{loopback(p.Family)}, p.Node.Addrs...)
		c.Of(f).Sync(serve.ListenAddrs(p.Family, p.Node.NodePorts, addrs), wanted)
	}
}

func (c checks) close() {
	for _, of := range c.All() {
		of.Close()
	}
}

func loopback(f ir.Family) netip.Addr { return f.Loopback().Addr().Next() }

// bootFile keeps the Programs that were last in force. A nil one does nothing.
type bootFile struct {
	env  *env
	path string
	log  *slog.Logger

	changed atomic.Bool // what is in force, since it was last written
}

// keepEvery is how often the boot file is written at most: to start with what
// was in force a little before does no harm.
const keepEvery = 30 * time.Second

// put puts in force what the file holds. It makes no difference to what comes
// after if that fails, or there is no file.
func (b *bootFile) put(ctx context.Context, r *reconcile.Reconciler, mode ir.Mode) {
	if b == nil {
		return
	}
	data, err := b.env.files.ReadFile(b.path)
	if err != nil {
		if !os.IsNotExist(err) {
			b.log.Error("--boot-from", "err", err)
		}
		return
	}
	programs, err := ir.ReadJSON(strings.NewReader(string(data)))
	if err == nil && (programs.IPv4 == nil || programs.IPv6 == nil || programs.IPv4.Node.Mode != mode) {
		err = fmt.Errorf("%s: is not for mode %s", b.path, mode)
	}
	if err == nil {
		var done reconcile.Done
		if done, err = r.Replace(ctx, programs); err == nil {
			b.log.Info("what was last in force is in force", "file", b.path, "operations", done.Operations.String())
		}
	}
	if err != nil {
		b.log.Error("--boot-from", "err", err)
	}
}

// offer notes that something else is in force now.
func (b *bootFile) offer() {
	if b != nil {
		b.changed.Store(true)
	}
}

// keep writes what is in force when that was changed, until ctx ends.
func (b *bootFile) keep(ctx context.Context, inForce func() ir.Programs) {
	if b == nil {
		return
	}
	wait := time.Second
	for {
		select {
		case <-ctx.Done():
			b.write(inForce)
			return
		case <-time.After(wait):
		}
		if wait = time.Second; b.write(inForce) {
			wait = keepEvery
		}
	}
}

// write tells whether there was anything to write.
func (b *bootFile) write(inForce func() ir.Programs) bool {
	if !b.changed.Swap(false) {
		return false
	}
	programs := inForce()
	if err := b.env.writeFile(b.path, func(w io.Writer) error { return ir.WriteJSON(w, programs) }); err != nil {
		b.log.Error("--boot-from", "err", err)
		b.changed.Store(true) // a disk that is full now may not be so later
	}
	return true
}

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// scheduleOf is when the rules are written, as the configuration's periods mean it.
func scheduleOf(cfg *config.Config) reconcile.Schedule {
	every := cmp.Or(dataplaneOf(cfg.ProxyMode()).compareEvery, apply.CompareEvery)
	return reconcile.Schedule{Min: cfg.MinSyncPeriod(), Retry: cfg.SyncPeriod(), Full: every}
}

// dataplaneOptions are what a dataplane takes from a configuration; ipvs is
// what mode ipvs is told beside that.
func dataplaneOptions(cfg *config.Config, ipvs apply.IPVS) apply.Options {
	ipvs.Scheduler, _, _ = ir.ParseScheduler(cfg.Scheduler())
	return apply.Options{IPVS: ipvs, Network: cfg.Winkernel.NetworkName, RootEndpoint: cfg.Winkernel.RootHnsEndpointName}
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
	if err := checkMode(d.cfg.ProxyMode(), true); err != nil { // before anything is touched
		return err
	}
	o := dataplaneOptions(d.cfg, d.IPVS)
	o.IPTables, o.LockTimeout, o.Log = d.IPTables, d.Options.LockTimeout, d.log.Logger
	o.Local, o.OwnTables, o.Fastpath = d.store.SetHosted, d.OwnTables, d.Fastpath
	o.Previous = d.previous.Dataplane
	dataplane, err := Open(ctx, d.cfg.ProxyMode(), o) // it says what the kernel lacks, before any setting is touched
	if err != nil {
		return orDone(ctx, err)
	}
	defer d.leave(ctx, dataplane)
	last, lastFrom := d.lastInForce()
	if d.previous.mode == d.cfg.ProxyMode() {
		d.closeBefore()
	}
	var all sync.WaitGroup
	defer all.Wait()
	sourceCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	kept := d.cluster.whole
	synced, first, err := d.source(sourceCtx, &all)
	if err != nil {
		return err
	}
	if lastFrom == "" && !d.restarted { // there is nothing to go on with: a start that fails changes nothing
		if err := <-first; err != nil {
			return err
		}
	}
	if err := d.settings(); err != nil {
		return err
	}
	drift, err := dataplane.Drift(ctx)
	if err != nil {
		d.log.Error("changes of the rules by others will be seen late", "err", err)
	}
	d.countPackets(dataplane.Counters())
	d.progress.setDraining(dataplane.Counters().Draining)
	d.countProxied(dataplane.Counters())
	r := reconcile.Reconciler{
		Schedule:  scheduleOf(d.cfg),
		Source:    d.follower,
		Dataplane: dataplane,
		Drift:     drift,
		Report:    d.reported,
		Trim:      debug.FreeOSMemory,
		Now:       time.Now, After: time.After,
		Committing: d.flows.Committing,
	}
	all.Go(func() { d.flows.Run(sourceCtx) })
	lack := func() string {
		select {
		case <-synced:
			return d.lackOfPods()
		default:
			return "waiting for the first objects"
		}
	}
	hasRules, release := d.restarted, func() {}
	if lastFrom != "" && (!kept || lack() != "") {
		var held bool
		if modeOf(last) == d.cfg.ProxyMode() {
			held, release = d.hold(ctx, r, last, lastFrom, lack)
		} else {
			held, release = d.holdOther(ctx, r, o, last, lastFrom, synced, lack)
		}
		hasRules = hasRules || held
	}
	defer release()
	if err := <-first; err != nil && !hasRules {
		return err
	} else if err != nil {
		d.log.Error("the snapshot stays as it is", "err", err)
	}
	d.health.SetNotReady("waiting for the first objects")
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
	}
	d.cluster.whole = true
	if !d.podsKnown(ctx) {
		return nil
	}
	if err := d.checkNode(); err != nil {
		return err
	}
	release()
	d.progress.setInForce(dataplane.Applied)
	d.wrote.Store(true)
	all.Go(func() { d.boot.keep(sourceCtx, dataplane.Applied) })
	all.Go(func() { d.follower.watchInterfaces(sourceCtx) })
	all.Go(func() { d.easing.run(sourceCtx) })
	r.Synced = d.synced
	r.Source = proving{d.follower, d.proofs}
	d.peer.begin()
	r.Tidy.Again = d.untidy
	watchPeer := sync.OnceFunc(func() { all.Go(func() { d.peer.watch(sourceCtx) }) })
	r.Tidy.Do = func(ctx context.Context) error {
		if d.peer.maintained() {
			return errors.New("kube-proxy runs beside proxyc")
		}
		leftovers, err := Leftovers(ctx, d.cfg.ProxyMode(), dataplane)
		kept, err := d.removeLeftovers(ctx, leftovers, err)
		if len(kept) > 0 {
			d.easing.give(ctx, eased{leftovers, kept})
		}
		d.closeBefore()
		watchPeer()
		debug.FreeOSMemory()
		return err
	}
	smallHeap(garbageAtRest)
	r.Run(ctx)
	return nil
}

// podsKnown waits until what detectLocalMode needs of the Node is there, as
// kube-proxy does (DET-2), and reports false if ctx ended before. Rules that do
// not tell pods from others must not take the place of those that do.
func (d *daemon) podsKnown(ctx context.Context) bool {
	told := false
	for {
		why := d.lackOfPods()
		if why == "" {
			return true
		}
		if !told {
			told = true
			d.log.Warn(why + "; the rules stay as they are")
			d.health.SetNotReady(why)
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.store.Changed():
		}
	}
}

// lackOfPods says what is waited for; "": nothing.
func (d *daemon) lackOfPods() (why string) {
	d.store.View(func(snap *snapshot.Snapshot) {
		if lack := LackOfPods(d.cfg, snap, d.nodeName); lack != "" {
			why = "waiting for " + lack
		}
	})
	return why
}

// LackOfPods says what detectLocalMode needs of a Node and does not find, so that
// no pod could be told from others; "" if nothing (DET-2).
func LackOfPods(cfg *config.Config, snap *snapshot.Snapshot, nodeName string) string {
	if cfg.DetectLocalMode != config.DetectNodeCIDR || !cfg.ProxyMode().Capabilities().Has(ir.Masquerades) || len(podCIDRs(snap, nodeName)) > 0 {
		return ""
	}
	return "pod ranges of Node " + nodeName + ", which detectLocalMode NodeCIDR needs: spec.podCIDRs is empty or the Node is not there"
}

// checkNode holds the configuration against the Node, as far as its addresses
// are known (CFG-14, CFG-15).
func (d *daemon) checkNode() error {
	interfaces, err := Interfaces()
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

// reported enters what is wanted and what is known of the kernel into health, status and
// metrics.
func (d *daemon) reported(st reconcile.State) { d.report(st, st.NotReady()) }

// report is reported, with why the node is not ready; "": it is.
func (d *daemon) report(st reconcile.State, why string) {
	d.proofs.resume() // no sync is under way
	if requests := st.Wanted + st.Doubts; requests != d.requests {
		d.requests = requests
		for _, f := range ir.Families() {
			d.metrics.LastQueued.Of(f).SetToCurrentTime()
		}
	}
	d.countPending()
	progress := !d.waiting.IsZero() && st.Waiting != d.waiting
	d.waiting = st.Waiting
	for _, f := range ir.Families() {
		if progress || st.InForce() {
			d.health.Updated(f)
		}
		if !st.InForce() {
			d.health.Queued(f)
		}
	}
	d.health.SetNotReady(why)
	d.progress.setSynced(st.InForce())
}

// synced does what follows a sync, in the order in which it matters to packets.
func (d *daemon) synced(s *reconcile.Sync) {
	defer d.record(s) // a reader of the status relies on all of it
	if !d.settled(s) {
		return
	}
	if !d.followed && !d.restarted {
		d.tellGone(s)
	}
	d.followed = true
	d.flows.Ended(conntrack.Work{Programs: s.Work.Programs, Changes: s.Work.Changes, All: s.Kind == reconcile.Full, Removed: s.Done.Removed})
	d.checks.sync(s)
	d.serveLocalhost(s)
	d.boot.offer()
	if !d.programmed.Swap(true) {
		defer d.condition.Poke()
	}
}

// record enters a sync into the status.
func (d *daemon) record(s *reconcile.Sync) {
	d.drift.add(s)
	d.progress.add(s)
}

// settled counts and tells what a sync did, and reports whether it succeeded.
func (d *daemon) settled(s *reconcile.Sync) bool {
	d.count(s)
	if s.Err != nil {
		d.flows.NoteRemoved(s.Done.Removed)
		d.log.Error("the rules are behind", "err", s.Err)
		return false
	}
	d.tell(s)
	d.proofs.add(s.Work)
	return true
}

// tell logs what a sync did.
func (d *daemon) tell(s *reconcile.Sync) {
	if total(s.Done.Drift) > 0 {
		d.drift.tell(&s.Done)
	}
	for _, r := range s.Done.RefusedNow {
		d.log.Error("the kernel refuses the rules of a Service, which is left out until it changes or the next full comparison", "service", r.Service.String(), "err", r.Reason)
	}
	say := d.log.Debug
	if total(s.Done.Operations) > 0 && s.Kind == reconcile.Full && total(s.Done.Drift) == 0 {
		say = d.log.Info
	}
	say("synced", "kind", s.Kind.String(), "operations", s.Done.Operations.String(), "took", s.Ended.Sub(s.Began))
}

// mostGone is how many frontends a start may remove without a word, where others stay.
const mostGone = 10

// tellGone tells where the first sync of the process removed most of what the node had, as
// while it runs the Store tells of objects: an API server that was restored from nothing says so, too.
func (d *daemon) tellGone(s *reconcile.Sync) {
	gone, now := len(s.Done.Removed), 0
	for _, p := range ir.Present(s.Work.Programs) {
		for i := range p.Services {
			now += len(p.Services[i].Frontends)
		}
	}
	if gone > 0 && now == 0 || gone >= mostGone && gone > now {
		d.log.Warn("most of what was in force before the start is gone: its rules go, too", "frontends removed", gone, "now", now)
	}
}

func total(c apply.Count) int { return c.Added + c.Changed + c.Removed }

// cleaned notes what was done about the UDP flows that held on to what is gone.
func (d *daemon) cleaned(c conntrack.Cleaned) {
	d.faults.retrying("stale "+c.Family.String()+" UDP flows", c.Err)
	if c.Err != nil {
		d.metrics.ConntrackFailures.Of(c.Family).Inc()
	}
	d.log.Debug("deleted stale UDP flows", "family", c.Family.String(), "flows", c.Deleted, "took", c.Took)
	d.metrics.ConntrackSeconds.Of(c.Family).Observe(c.Took.Seconds())
	d.metrics.ConntrackDeleted.Of(c.Family).Add(float64(c.Deleted))
}

// following says what still has to follow the last sync; "": nothing.
func (d *daemon) following() string {
	if d.flows.Busy() {
		return "stale UDP flows are being deleted"
	}
	return d.checks.failing()
}

// settings brings the kernel's settings to what configuration and mode want,
// and says which were changed.
func (d *daemon) settings() error {
	differ, err := Settings(d.cfg, d.nodeName)
	d.set.Store(&differ)
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		return err
	}
	for _, s := range differ {
		d.log.Info("set", "setting", s.String(), "why", s.Why.String())
	}
	return nil
}

// unset brings the kernel's settings back to what they were before settings. Otherwise
// they stay, as they do with kube-proxy: others may have come to rely on them. This is for a
// configuration that was never in force.
func (d *daemon) unset() {
	written := d.set.Load()
	if written == nil {
		return
	}
	undo := sysctl.Undo(kernelRoot, *written)
	if err := sysctl.Write(kernelRoot, undo); err != nil {
		d.log.Warn("settings of the refused configuration stay", "err", err)
	}
	for _, s := range undo {
		d.log.Info("set back", "setting", s.String(), "why", "the configuration that wanted "+s.Have+" is refused")
	}
}

// oomScore asks the kernel to spare the process.
func (d *daemon) oomScore() {
	if runtime.GOOS != "linux" {
		return
	}
	differ, err := sysctl.Diff(kernelRoot, sysctl.OOMScore(d.cfg))
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		d.log.Warn("oomScoreAdj", "err", err)
	}
}

// ask has the Reconciler tidy up again, and waits for what comes of it.
func ask(ctx context.Context, untidy chan<- func(error)) error {
	done := make(chan error, 1)
	select {
	case untidy <- func(err error) { done <- err }:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-done
}

// removeLeftovers takes away what proxies of other modes left, and returns what
// connections need of it; err says why more of that may not have been found.
func (d *daemon) removeLeftovers(ctx context.Context, leftovers []apply.Leftover, err error) (kept []Busy, _ error) {
	for _, l := range leftovers {
		d.log.Info("removing", "object", l.Object)
	}
	kept, easeErr := ease(ctx, leftovers)
	for _, k := range kept {
		d.log.Info("stays until its connections end", "object", k.Object, "connections", k.Connections)
	}
	if warning := Exposed(leftovers); warning != "" {
		d.log.Warn(warning)
	}
	if err = errors.Join(err, easeErr); err != nil {
		d.metrics.LeftoverFailures.Inc()
	}
	d.faults.retrying("what other proxies left", err)
	return kept, err
}

// Of a lock for which there is no space: how long it is tried again, and how often.
const (
	lockPatience = time.Minute
	lockRetry    = time.Second
)

// lock waits until no other proxyc writes the node's rules, and a while for space for the
// lock's file.
func (d *daemon) lock(ctx context.Context) (*apply.Lock, error) {
	for began := time.Now(); ; {
		lock, err := acquireLock(ctx, func(why error) {
			d.log.Warn("waiting for another proxyc to end", "err", why)
			d.health.SetNotReady("waiting for another proxyc to end: " + why.Error())
		})
		is, was := d.faults.setRetrying("the lock of this node's rules", err)
		if !errors.Is(err, syscall.ENOSPC) || time.Since(began) >= lockPatience {
			return lock, err
		}
		if is != was {
			d.log.Warn("the lock cannot be written: will be tried again for "+lockPatience.String(), "err", err)
			d.health.SetNotReady(is)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockRetry):
		}
	}
}

package daemon

import (
	"cmp"
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/takeover"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
)

// scheduleOf returns when rules are written, according to the configuration's periods.
func scheduleOf(cfg *config.Config) reconcile.Schedule {
	mode := host.ModeOf(cfg.ProxyMode())
	return reconcile.Schedule{Min: cfg.MinSyncPeriod(), Retry: cfg.SyncPeriod(), Full: cmp.Or(mode.CompareEvery, apply.CompareEvery)}
}

// rules are the rules of a session in the kernel. [session.shutdown] releases what they own.
type rules struct {
	*session
	again    chan struct{} // receives a token to apply the configuration again
	observer *observer
	effects  *effects
	takeover *takeover.Takeover

	lock      *apply.Lock     // nil before it is acquired
	lost      func()          // called if another process could acquire the lock
	dataplane apply.Dataplane // nil before it is opened
	running   sync.WaitGroup  // goroutines that use the dataplane
}

// run maintains the rules until ctx ends. It writes the kernel settings, applies the last Programs
// if there are no objects yet, and then follows the input.
func (r *rules) run(ctx context.Context) error {
	writeOOMScore(r.config.Config, r.log.Logger)
	last, err := r.open(ctx)
	if ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	if err := r.prepare(ctx, last); err != nil {
		return err
	}
	rec := r.reconciler(ctx)
	r.running.Go(func() { r.effects.flows.Run(ctx) })
	h := restorer{rules: r}
	defer h.release()
	restored := false
	missing := r.input.missing()
	if missing != "" {
		r.input.health.SetNotReady(missing)
	}
	if last.IPv4 == nil {
		h.mendUnknown(ctx, rec)
	} else if missing != "" {
		restored = h.start(ctx, rec, last)
	}
	if err := <-r.input.first.readable; err != nil && !restored && r.Follows == nil {
		return err
	} else if err != nil {
		r.log.Error("the snapshot is invalid: the current objects are kept", "err", err)
	}
	if !r.input.wait(ctx) {
		return nil
	}
	if err := r.input.checkNode(); err != nil { // before restored rules are released
		return err
	}
	h.release()
	r.follow(ctx, rec)
	return nil
}

// open acquires the lock and opens the dataplane, which reports missing kernel features. Nothing on
// the node, including settings, changes before that. It returns the last applied Programs.
func (r *rules) open(ctx context.Context) (last lastPrograms, err error) {
	if r.lock, err = r.acquireLock(ctx); err != nil {
		return last, err
	}
	if boot := r.effects.boot; boot != nil {
		boot.lock = r.lock
	} else if err := r.lock.SetNote(""); err != nil { // no boot file contains the rules that follow
		return last, err
	}
	last = r.lastPrograms()
	r.dataplane, err = host.Open(ctx, r.config.Config.ProxyMode(), r.dataplaneOptions())
	return last, err
}

// prepare starts the input and writes the kernel settings.
func (r *rules) prepare(ctx context.Context, last lastPrograms) error {
	if err := r.input.start(ctx, &r.running); err != nil {
		return err
	}
	if last.IPv4 == nil && r.Follows == nil { // nothing is applied: a failed start must not change anything
		if err := <-r.input.first.readable; err != nil {
			return err
		}
	}
	return writeSettings(r.config.Config, r.input.node, r.log.Logger)
}

// close closes the dataplane, and node ports on localhost. Proxied connections continue.
func (r *rules) close() {
	r.effects.localhost.Close()
	if r.dataplane != nil {
		if err := r.dataplane.Close(); err != nil {
			r.log.Error("closing the dataplane", "err", err)
		}
	}
}

// dataplaneOptions returns the options for opening the dataplane.
func (r *rules) dataplaneOptions() apply.Options {
	p := r.Options
	o := host.Options(r.config.Config, p.IPVS)
	o.IPTables, o.LockTimeout, o.Log = p.IPTables, p.LockTimeout, r.log.Logger
	o.Local, o.OwnTables, o.Fastpath, o.ServiceMetrics = r.input.store.SetHosted, p.OwnTables, p.Fastpath, p.ServiceMetrics
	return o
}

// reconciler returns a Reconciler of the dataplane, and exports its kernel counters.
func (r *rules) reconciler(ctx context.Context) reconcile.Reconciler {
	counters := apply.CountersOf(r.dataplane)
	r.observer.counters.measurePackets(counters)
	r.observer.progress.setCounters(counters)
	if counters.Traffic != nil {
		r.observer.counters.CountServices(r.MetricsNamespaces, bounded(counters.Traffic))
	}
	r.effects.measureProxied(counters)
	return reconcile.Reconciler{
		Writer:   reconcile.Writer{Dataplane: r.dataplane, Committing: r.effects.flows.BeginCommit, Trim: debug.FreeOSMemory},
		Schedule: scheduleOf(r.config.Config),
		Source:   r.input.follower,
		Drift:    r.drift(ctx),
		Report:   r.observer.report,
		Now:      time.Now, After: time.After,
	}
}

// drift returns a channel with a token when a foreign program may have changed the rules.
func (r *rules) drift(ctx context.Context) <-chan struct{} {
	drift, err := r.dataplane.Drift(ctx)
	if err != nil {
		r.log.Error("foreign changes of the rules are not watched: they are repaired at the next full sync", "err", err)
	}
	return drift
}

// follow applies the compiled objects until ctx ends.
func (r *rules) follow(ctx context.Context, rec reconcile.Reconciler) {
	r.observer.progress.setApplied(r.dataplane.Applied().Programs)
	saving, stopSaving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSaving() // after the last sync, which the boot file then contains
	r.running.Go(func() { r.effects.boot.run(saving, r.dataplane.Applied().Programs) })
	r.running.Go(func() { r.input.follower.watchInterfaces(ctx) })
	r.running.Go(func() { r.takeover.Follow(ctx) })
	r.running.Go(func() {
		watch.Poll(ctx, []string{r.lock.Path()}, 0, nil, func() time.Duration {
			if r.lock.Held() {
				return 0
			} else if err := host.CheckLock(); err != nil { // as if the directory that a pod mounts was removed: no restart would acquire the lock
				r.log.Error("the files in /run/proxyc were removed, and cannot be written again: start the pod again", "err", err)
				return watch.LongestRetry
			}
			r.log.Warn("the files in /run/proxyc were removed: restarting to write them again")
			r.lost()
			return 0
		})
	})
	rec.Committing = func() { r.effects.boot.beginCommit(); r.effects.flows.BeginCommit() }
	t := r.takeover
	t.Begin() // before the first sync, which takes over existing rules
	watchPeer := sync.OnceFunc(func() { r.running.Go(func() { t.WatchKubeProxy(ctx) }) })
	tidy := sync.OnceFunc(func() { // after the first sync
		r.running.Go(func() {
			t.Run(ctx, func(ctx context.Context) error { return t.Tidy(ctx, r.dataplane, watchPeer) })
		})
	})
	rec.Synced = func(s *reconcile.Sync) {
		if r.synced(s) {
			tidy()
		}
	}
	setGCPercent(garbageAtRest)
	rec.Run(ctx)
}

// synced does the work after a sync, and reports whether it succeeded.
func (r *rules) synced(s *reconcile.Sync) bool {
	if s.Incomplete {
		r.effects.flows.NoteRemoved(s.Done.Removed)
		if s.Err == nil { // at the end of the session
			r.effects.boot.markChanged()
		}
		return false
	}
	defer r.observer.record(s) // last, since readers of the status rely on the rest
	if !r.settled(s) {
		return false
	}
	if !r.observer.followed && r.Follows == nil {
		r.observer.logRemoved(s)
	}
	r.observer.followed = true
	r.effects.follow(s)
	return true
}

// settled counts and logs a sync, and reports whether it succeeded.
func (r *rules) settled(s *reconcile.Sync) bool {
	r.observer.counters.count(s, r.observer.followed)
	if s.Err != nil {
		r.log.Error("the sync failed", "err", s.Err)
		r.effects.flows.NoteRemoved(s.Done.Removed) // for the next successful sync
		return false
	}
	r.observer.logSync(s)
	return true
}

// acquireLock waits until no other proxyc writes the node's rules.
func (r *rules) acquireLock(ctx context.Context) (*apply.Lock, error) {
	if r.Follows != nil && r.Follows.lock != nil {
		return r.Follows.lock, nil
	}
	return host.AcquireLock(ctx, func(why error) {
		r.log.Warn("waiting for another proxyc process to stop", "err", why)
		r.health.SetNotReady("waiting for another proxyc process to stop: " + why.Error())
	})
}

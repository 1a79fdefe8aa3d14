package daemon

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/logging"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/daemon/takeover"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// session is the state of the daemon, for one configuration.
type session struct {
	*Options
	config  *config.Resolved
	log     *logging.Logger
	faults  *faults
	health  *serve.Health
	metrics *serve.Metrics
	input   *input
	rules   *rules
	foreign *foreignRules
	status  *collector
	servers *servers
	file    *configFile
}

// newSession returns a session for a configuration.
func newSession(ctx context.Context, o *Options, first *config.Resolved) (*session, error) {
	log := logging.New(o.Stdout, o.Stderr, &first.Config.Logging)
	name, err := node.Name(first.NodeName, o.Hostname)
	if err != nil {
		return nil, err
	}
	var reason error
	used := *first
	if o.ModeFallback {
		var mode ir.Mode
		mode, reason = supported(first.Config, func(cfg *config.Config) error { return tryOpen(ctx, o, cfg) })
		used.Config = inMode(first.Config, mode)
	}
	cfg := used.Config
	s := &session{Options: o, config: &used, log: log, metrics: newMetrics(cfg, o.Version)}
	s.faults = &faults{log: log.Logger, now: time.Now}
	s.health = serve.NewHealth(2*cfg.SyncPeriod(), time.Now)
	s.input = newInput(s, name)
	hosts := hosts(name, o.Hostname)
	s.rules = newRules(s, hosts)
	s.foreign = newForeignRules(func(ctx context.Context) (apply.Interference, error) {
		return host.Interference(ctx, 1<<cfg.MasqueradeBit(), s.rules.observer.progress.programs())
	}, log.Logger, time.Now)
	s.file = newConfigFile(o, first.Config, log.Logger, s.faults)
	s.status = s.newCollector()
	if reason != nil {
		s.status.process.InsteadOf, s.status.process.InsteadOfReason = first.Config.ProxyMode(), reason.Error()
		log.Warn("this node does not support the configured mode: another one is used until the daemon stops",
			"wanted", string(first.Config.ProxyMode()), "mode", string(cfg.ProxyMode()), "err", reason)
	}
	s.servers = &servers{s, hosts}
	s.prepareHealth()
	s.measure()
	return s, nil
}

// hosts returns the names by which clients on the node may address it.
func hosts(nodeName string, hostname func() (string, error)) []string {
	names := []string{strings.ToLower(nodeName)}
	if hostname != nil {
		if host, err := hostname(); err == nil {
			names = append(names, strings.ToLower(host))
		}
	}
	return names
}

// newRules returns the rules of a session.
func newRules(s *session, hosts []string) *rules {
	cfg, log, events := s.config.Config, s.log.Logger, s.input.events
	observer := &observer{
		session: s, progress: &progress{}, drift: &drift{log: log, now: time.Now},
		counters: &counters{Metrics: s.metrics, store: s.input.store, follower: s.input.follower, began: time.Now()},
	}
	takeover := takeover.New(takeover.Options{Mode: cfg.ProxyMode(), Deadline: cmp.Or(s.IPVS.DrainDeadline, apply.DrainDeadline), Retry: cfg.SyncPeriod(), Log: log,
		Retrying: s.faults.retrying, Failed: s.metrics.LeftoverFailures.Inc, Repaired: observer.drift.repairedSince, Send: events.Send})
	return &rules{
		session: s, again: make(chan struct{}, 1), observer: observer, takeover: takeover,
		effects: newEffects(s, newChecks(s.health, s.faults, events, log, hosts)),
	}
}

// newCollector returns the collector of a session.
func (s *session) newCollector() *collector {
	st := &collector{now: time.Now, process: status.Process{Version: s.Version, PID: os.Getpid(), Started: s.input.started, Node: s.input.node, Mode: s.config.Config.ProxyMode()}}
	r := s.rules
	st.parts = []func(*status.Status){
		s.input.reportPending,      // before the applied rules
		r.observer.progress.report, // before their input, and the work that follows
		r.effects.report, s.input.report,
		r.observer.drift.report, r.takeover.Report,
		s.faults.report, s.file.report,
		func(st *status.Status) { st.Reason = s.health.Ready().Reason },
	}
	return st
}

// prepareHealth connects the health to everything besides the rules that readiness depends on.
func (s *session) prepareHealth() {
	s.health.Pending = s.input.store.Pending
	s.health.FollowUp = s.rules.effects.pending
	s.health.OtherProxy = s.rules.takeover.Warning
	s.health.Outage = func() string { return cmp.Or(s.input.outage(), s.faults.pending()) }
}

// measure exports metrics that syncs do not count.
func (s *session) measure() {
	c := s.rules.observer.counters
	c.measureStore()
	c.measureConntrack()
	c.measureFindings()
	s.metrics.MeasureProblems(s.problems)
	if s.input.contact != nil {
		s.metrics.MeasureContact(s.input.contacts)
		s.metrics.MeasureClient()
	}
}

// problems counts problems in a Status besides the rules.
func (s *session) problems() serve.Problems {
	var st status.Status
	s.faults.report(&st)
	others, boot := s.foreign.last(), s.rules.effects.boot
	return serve.Problems{Invalid: len(st.InvalidFiles), NotServed: len(st.Down),
		BootFile:  boot != nil && boot.failed.Load() != nil,
		KubeProxy: s.rules.takeover.Warning() != "",
		MayDrop:   len(others.Drops), MayDivert: len(others.Diverts)}
}

// run runs until ctx ends or there is an error, which may be a *Restart.
func (s *session) run(parent context.Context) error {
	defer s.log.Flush()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	s.announce()
	run := func(in *sync.WaitGroup, f func(context.Context) error) {
		in.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	var others sync.WaitGroup
	for _, f := range append(s.servers.all(), s.foreign.run, s.foreign.follow, s.log.Run, s.file.watch, s.reload, s.rules.effects.checks.run) {
		run(&others, f)
	}
	run(&s.rules.running, s.keepRules)
	<-ctx.Done()
	cause := context.Cause(ctx)
	restart, _ := errors.AsType[*Restart](cause)
	ended := s.shutdown(parent, restart, &others)
	if restart != nil && parent.Err() == nil {
		return restart
	}
	if restart != nil || errors.Is(cause, context.Canceled) {
		cause = nil
		if s.config.Config.ProxyMode().ByProcess() {
			s.log.Info("stopped: connections through this process have ended, and no rules redirect to it")
		} else {
			s.log.Info("stopped: the rules remain")
		}
	}
	if ended {
		if restart != nil && restart.lock != nil {
			restart.lock.Release()
		}
		s.drain()
	}
	return cause
}

// announce logs what starts, sends the events of a start, and logs their warnings.
func (s *session) announce() {
	s.log.Info("starting", "version", s.Version, "mode", string(s.config.Config.ProxyMode()), "node", s.input.node, "config", s.ConfigFile, "objects", cmp.Or(strings.Join(s.Snapshot, " "), "API server"), "socket", s.StatusSocket)
	if follows := s.Follows; follows != nil && follows.failures > 0 {
		return // events are sent once
	}
	for _, e := range startEvents(s.config) {
		s.input.events.Send(e)
		if e.Warning {
			s.log.Warn(e.Note)
		}
	}
}

// shutdown waits until everything has ended, and reports whether it has. Other programs rely on the
// order:
//
//  1. The reconciler ends, after a commit, comparison or removal of leftovers in progress, and so
//     do the goroutines that use the dataplane. Then the boot file is written.
//  2. The dataplane is closed: a mode whose process proxies connections removes its rules.
//  3. The lock passes to the Restart. Without one it is released, and another proxyc may write.
//  4. The servers have ended, and the health check ports are closed. The reconciler could have
//     opened another one before.
//
// After a signal this must not take long. An interrupted commit leaves no partial Service, and the
// next start continues from there. It does not restore the boot file, which may be older.
func (s *session) shutdown(parent context.Context, restart *Restart, others *sync.WaitGroup) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.rules.running.Wait()
		s.rules.close()
		if restart != nil {
			restart.lock = s.rules.lock
		} else if s.rules.lock != nil {
			s.rules.lock.Release()
		}
		others.Wait()
		s.rules.effects.checks.close()
	}()
	select {
	case <-ended:
		return true
	case <-parent.Done():
	}
	select {
	case <-ended:
		return true
	case <-time.After(lastWorkOf(s.config.Config.ProxyMode())):
		s.log.Warn("stopping during a sync")
		return false
	}
}

// lastWorkOf returns how long work in progress may continue after a signal: longer in a mode whose
// rules have to be removed.
func lastWorkOf(mode ir.Mode) time.Duration {
	if mode.ByProcess() {
		return 10 * time.Second
	}
	return reconcile.CommitGrace + 500*time.Millisecond
}

// drain waits for proxied connections to end, after everything else has ended. At the timeout it
// closes them.
func (s *session) drain() {
	draining := []apply.Drainer{s.rules.effects.localhost}
	if d, ok := apply.DrainerOf(s.rules.dataplane); ok {
		draining = append(draining, d)
	}
	carried, cut := 0, 0
	for _, d := range draining {
		carried += d.Carried()
	}
	if carried > 0 {
		s.log.Info("waiting for connections to end", "connections", carried, "at most", s.DrainTimeout.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.DrainTimeout)
	defer cancel()
	for _, d := range draining {
		cut += d.Drain(ctx)
	}
	if cut > 0 {
		s.log.Warn("remaining connections were closed", "connections", cut)
	}
}

// reload forwards requests of Reload until ctx ends.
func (s *session) reload(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-s.Reload:
			s.log.Info("reading configuration and snapshot again", "signal", sig)
			for _, again := range []chan struct{}{s.file.again, s.input.again, s.rules.again} {
				apply.Wake(again)
			}
		}
	}
}

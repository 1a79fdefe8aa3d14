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
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/daemon/takeover"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
)

// session is the state of the daemon for one configuration.
type session struct {
	*process
	config  *loaded
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

// newSession returns a session for a configuration. refused is another one that could not be
// applied; optional.
func newSession(p *process, of *loaded, refused *refusedConfig, log *logging.Logger) (*session, error) {
	name, err := node.Name(of.NodeName, p.Hostname)
	if err != nil {
		return nil, err
	}
	cfg := of.Config
	s := &session{process: p, config: of, log: log, metrics: newMetrics(cfg, p.Version)}
	p.cluster.resume(name)
	s.faults = &faults{log: log.Logger, now: time.Now}
	s.health = serve.NewHealth(2*cfg.SyncPeriod(), time.Now)
	s.health.Resume(p.lastHealth)
	p.lastHealth = s.health
	s.input = newInput(s)
	hosts := hosts(name, p.Hostname)
	s.rules = newRules(s, hosts)
	s.foreign = newForeignRules(func(ctx context.Context) (apply.Interference, error) {
		return host.Interference(ctx, 1<<cfg.MasqueradeBit())
	}, log.Logger, time.Now)
	s.file = newConfigFile(p, of, refused, log.Logger, s.faults)
	s.status = s.newCollector()
	s.servers = newServers(s, hosts)
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
	p, cfg, log, events := s.process, s.config.Config, s.log.Logger, s.input.events
	observer := &observer{
		health: s.health, progress: &progress{}, drift: &drift{log: log, now: time.Now}, log: log,
		counters: &counters{Metrics: s.metrics, store: p.cluster.store, follower: s.input.follower, began: time.Now()},
	}
	takeover := takeover.New(takeover.Options{Mode: cfg.ProxyMode(), Deadline: cmp.Or(p.IPVS.DrainDeadline, apply.DrainDeadline), Log: log,
		Retrying: s.faults.retrying, Failed: s.metrics.LeftoverFailures.Inc, Repaired: observer.drift.repairedSince, Send: events.Send})
	return &rules{
		process: p, config: s.config, log: log, input: s.input, observer: observer, takeover: takeover,
		effects: newEffects(s, newChecks(s.health, s.faults, events, log, hosts)),
		sysctls: &sysctls{cfg: cfg, node: p.cluster.node, log: log},
	}
}

// newCollector returns the collector of a session.
func (s *session) newCollector() *collector {
	mode := s.config.Config.ProxyMode()
	st := &collector{now: time.Now, process: status.Process{Version: s.Version, PID: os.Getpid(), Started: s.started, Node: s.cluster.node, Mode: mode}}
	if wanted, reason := s.fallback.insteadOf(mode); wanted != "" {
		st.process.InsteadOf, st.process.InsteadOfReason = wanted, reason
		s.log.Warn("this node does not support the configured mode: another one is used until the daemon stops",
			"wanted", string(wanted), "mode", string(mode), "err", reason)
	}
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
	s.health.SetNode(s.cluster.state)
	s.health.Pending = s.cluster.store.Pending
	s.health.FollowUp = s.rules.effects.pending
	s.health.OtherProxy = s.rules.takeover.Warning
	s.health.Outage = func() string { return cmp.Or(s.input.outage(), s.faults.pending()) }
}

// measure exports metrics that syncs do not count.
func (s *session) measure() {
	c := s.rules.observer.counters
	c.measureStore()
	c.measureConntrack()
	c.measureFindings(&s.input.broken)
	s.metrics.MeasureProblems(s.problems)
	if s.input.contact != nil {
		s.metrics.MeasureContact(s.input.contacts)
		watch.Measure(&s.metrics.Client)
	}
}

// problems counts problems in a Status besides the rules.
func (s *session) problems() serve.Problems {
	var st status.Status
	s.faults.report(&st)
	others, boot := s.foreign.last(), s.rules.effects.boot
	return serve.Problems{Rejected: len(st.Rejected), NotServed: len(st.Down),
		BootFile:  boot != nil && boot.failed.Load() != nil,
		KubeProxy: s.rules.takeover.Warning() != "",
		MayDrop:   len(others.Drops), MayDivert: len(others.Diverts)}
}

// run runs until ctx ends, or until an error or another configuration, which it returns.
func (s *session) run(parent context.Context) (next *loaded, err error) {
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
	for _, f := range s.servers.all() {
		run(&others, f)
	}
	for _, f := range [...]func(context.Context) error{
		s.foreign.run, s.foreign.follow, s.log.Run, s.file.watch, s.reload, s.rules.effects.checks.run,
	} {
		run(&others, f)
	}
	run(&s.rules.running, s.keepRules)
	<-ctx.Done()
	s.shutdown(parent, &others)
	return s.end(context.Cause(ctx))
}

// announce sends the events of a start, and logs their warnings.
func (s *session) announce() {
	if s.retry.failures > 0 {
		return // events are sent once
	}
	for _, e := range startEvents(s.config.Resolved) {
		s.input.events.Send(e)
		if e.Warning {
			s.log.Warn(e.Note)
		}
	}
}

// keepRules applies and maintains the rules until ctx ends. After a failure of all configurations
// it waits first.
func (s *session) keepRules(ctx context.Context) error {
	if s.retry.failures > 0 {
		s.health.SetNotReady("no configuration can be applied: " + s.retry.err.Error())
		if !s.retry.wait(ctx) {
			return nil
		}
	}
	if err := s.rules.run(ctx); err != nil {
		return &rulesError{err}
	}
	return nil
}

// shutdown waits until everything has ended, in an order that other programs rely on:
//
//  1. The reconciler ends, after a commit, comparison or removal of leftovers in progress, and so
//     do the goroutines that use the dataplane. Then the boot file is written.
//  2. If another session follows, it receives the dataplane and the lock. Otherwise the dataplane is
//     closed: a mode whose process proxies connections removes its rules. Then the lock is released,
//     and another proxyc may write.
//  3. The servers have ended, and the health check ports are closed. The reconciler could have
//     opened another one before.
//
// The process then drains proxied connections, if no session follows ([process.run]).
//
// After a signal this must not take long. An interrupted commit leaves no partial Service, and the
// next start continues from there. It does not restore the boot file, which may be older.
func (s *session) shutdown(parent context.Context, others *sync.WaitGroup) {
	mode := s.config.Config.ProxyMode()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.rules.running.Wait()
		s.handover.leave(s.rules.dataplane, mode, parent.Err() == nil, s.log.Logger)
		others.Wait()
		s.rules.effects.checks.close()
	}()
	var limit <-chan time.Time
	if parent.Err() != nil {
		limit = time.After(lastWorkOf(mode))
	}
	select {
	case <-ended:
	case <-limit:
		s.stuck = true
		s.log.Warn("stopping during a sync")
	}
}

// end returns the result of a session: another configuration, an error, or neither.
func (s *session) end(cause error) (next *loaded, err error) {
	if changed, ok := errors.AsType[*configChanged](cause); ok {
		return changed.to, nil
	}
	if !errors.Is(cause, context.Canceled) {
		return nil, cause
	}
	if s.config.Config.ProxyMode().ByProcess() {
		s.log.Info("stopped: connections through this process have ended, and no rules redirect to it")
	} else {
		s.log.Info("stopped: the rules remain")
	}
	return nil, nil
}

// reload forwards requests of Reload until ctx ends.
func (s *session) reload(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-s.Reload:
			s.log.Info("reading configuration and snapshot again", "signal", sig)
			for _, again := range []chan struct{}{s.file.again, s.input.again} {
				select {
				case again <- struct{}{}:
				default: // already requested
				}
			}
		}
	}
}

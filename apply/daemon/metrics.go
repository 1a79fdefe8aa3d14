package daemon

import (
	"context"
	"strconv"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// newMetrics returns the metrics of a configuration. Counters of failures and operations exist from
// the start, so that the first one is visible as an increase.
func newMetrics(cfg *config.Config, version string) *serve.Metrics {
	m := serve.NewMetrics(cfg.ProxyMode(), version, cfg.Enabled(config.GateNativeHistograms))
	for _, f := range cfg.Features() {
		value := 0.0
		if f.On {
			value = 1
		}
		m.Feature(f.Name, f.Stage).Set(value)
	}
	for _, f := range ir.Families() {
		m.RestoreFailures.Of(f)
		m.PartialRestoreFailures.Of(f)
		m.NFTSyncFailures.Of(f)
		m.NFTCleanupFailures.Of(f)
		m.ConntrackDeleted.Of(f)
		m.ConntrackFailures.Of(f)
		if servesLocalhost(cfg) {
			m.LocalhostListeners.Of(f)
			m.LocalhostFailures.Of(f)
		}
	}
	for _, v := range [...]apply.Verb{apply.Add, apply.Change, apply.Remove} {
		m.Operations(v.String())
	}
	return m
}

// counters records syncs in the metrics.
type counters struct {
	*serve.Metrics
	store    *watch.Store
	follower *follower
	began    time.Time // start of the session
	tallies  ir.PerFamily[serve.Tally]
}

// measureFindings exports the numbers of findings.
func (c *counters) measureFindings() {
	for _, severity := range [...]diag.Severity{diag.Error, diag.Warning} {
		c.MeasureFindings(severity.String(), func() int { return c.follower.findings.count(severity) })
	}
}

// measureConntrack exports the usage of the conntrack table.
func (c *counters) measureConntrack() {
	number := func(name string) serve.KernelNumber {
		return func() (uint64, error) {
			text, err := host.Root.Read("proc/sys/net/netfilter/" + name)
			if err != nil {
				return 0, err
			}
			return strconv.ParseUint(text, 10, 64)
		}
	}
	c.MeasureConntrack(number("nf_conntrack_count"), number("nf_conntrack_max"))
}

// measureStore exports the memory of the Store.
func (c *counters) measureStore() {
	c.MeasureStore(func() (bytes int) {
		c.store.View(func(s *snapshot.Snapshot) { bytes = s.Bytes() })
		return bytes
	})
}

// counterTimeout bounds the reads of kernel counters during a scrape.
const counterTimeout = 2 * time.Second

// bounded limits the time of a read.
func bounded[T any](read func(context.Context) (T, error)) func() (T, error) {
	return func() (T, error) {
		ctx, cancel := context.WithTimeout(context.Background(), counterTimeout)
		defer cancel()
		return read(ctx)
	}
}

// measurePackets exports the kernel's counters of a dataplane.
func (c *counters) measurePackets(of apply.Counters) {
	if of.Draining != nil {
		c.CountDraining(func() int { return len(of.Draining()) })
	}
	if of.InvalidDropped == nil {
		return
	}
	c.CountPackets(serve.PacketCounters{
		InvalidDropped:     bounded(of.InvalidDropped),
		LocalhostNodePorts: bounded(of.LocalhostNodePorts),
	})
}

// count records a sync. change reports whether it applied changes; the first sync of a
// configuration does not count as such.
func (c *counters) count(s *reconcile.Sync, change bool) {
	seconds := s.Ended.Sub(s.Began).Seconds()
	m := c.Metrics
	for _, f := range ir.Families() {
		m.SyncSeconds.Of(f).Observe(seconds)
		if s.Kind == reconcile.Full {
			m.SyncFullSeconds.Of(f).Observe(seconds)
		} else {
			m.SyncPartialSeconds.Of(f).Observe(seconds)
		}
	}
	for _, commit := range s.Done.Commits {
		for _, f := range commit.Result.Balancers {
			m.BalancerFailures[f.Verb](f.Family.String(), f.Type, f.Cause).Inc()
		}
	}
	if s.Err != nil {
		c.countFailure(s)
		c.countPending()
		return
	}
	now := c.follower.takeWaiting()
	c.countPending()
	m.ServiceChanges.Add(float64(now.ServiceEvents))
	m.EndpointChanges.Add(float64(now.EndpointEvents))
	if !now.Since.IsZero() {
		m.EventSeconds.Observe(latency(s.Ended, now.Since))
	}
	for _, t := range now.Triggers {
		if t.At.After(c.began) { // earlier changes are not measured by this process
			m.ProgrammingSeconds.Of(t.Family).Observe(latency(s.Ended, t.At))
		}
	}
	if change {
		c.countChanges(s, now.Arrivals)
	}
	m.Operations(apply.Add.String()).Add(float64(s.Done.Operations.Added))
	m.Operations(apply.Change.String()).Add(float64(s.Done.Operations.Changed))
	m.Operations(apply.Remove.String()).Add(float64(s.Done.Operations.Removed))
	m.DriftRepairs.Add(float64(s.Done.Drift.Total()))
	m.Refused.Set(float64(len(s.Done.Refused) + len(s.Done.RefusedRemovals)))
	c.countTables(s.Done.Commits)
	c.countCleanups(s.Done.Commits)
	for _, f := range ir.Families() {
		m.LastSync.Of(f).Set(float64(s.Ended.UnixNano()) / 1e9)
		t := c.tallies.At(f)
		if s.Kind == reconcile.Full {
			t.Reset(s.Work.Programs.Of(f))
		} else {
			t.Change(s.Work.Changes.Of(f))
		}
		m.NoLocalEndpoints("internal", f.String()).Set(float64(t.Internal))
		m.NoLocalEndpoints("external", f.String()).Set(float64(t.External))
	}
}

// countChanges observes the latency of applied changes. Services that the kernel refused are not
// applied.
func (c *counters) countChanges(s *reconcile.Sync, arrivals []watch.Arrival) {
	refused := map[ir.Name]bool{}
	for _, r := range s.Done.Refused {
		refused[r.Service] = true
	}
	for _, a := range arrivals {
		if refused[a.Service] {
			continue
		}
		c.ChangeSeconds(serve.SinceArrival).Observe(latency(s.Ended, a.At))
		if a.Triggered.After(c.began) {
			c.ChangeSeconds(serve.SinceTrigger).Observe(latency(s.Ended, a.Triggered))
		}
	}
}

// countPending sets the numbers of changes that are not applied.
func (c *counters) countPending() {
	services, endpoints := c.store.Events()
	c.ServiceChangesPending.Set(float64(services + c.follower.waiting.ServiceEvents))
	c.EndpointChangesPending.Set(float64(endpoints + c.follower.waiting.EndpointEvents))
}

// countFailure counts a failed sync for its family. If the family is unknown, it counts both:
// nftables commits both families in one transaction, and a failed read has none.
func (c *counters) countFailure(s *reconcile.Sync) {
	both := ir.Families()
	of := both[:]
	if n := len(s.Done.Commits); n > 0 && len(s.Done.Commits[n-1].Result.Failed) > 0 {
		of = s.Done.Commits[n-1].Result.Failed
	}
	for _, f := range of {
		c.RestoreFailures.Of(f).Inc()
		c.NFTSyncFailures.Of(f).Inc()
		if s.Kind != reconcile.Full {
			c.PartialRestoreFailures.Of(f).Inc()
		}
	}
}

// countCleanups counts the commits whose removals are pending.
func (c *counters) countCleanups(commits []reconcile.Commit) {
	for _, commit := range commits {
		for f, n := range commit.Result.Pending.All() {
			if n > 0 {
				c.NFTCleanupFailures.Of(f).Inc()
			}
		}
	}
}

// countTables counts the rules of dataplanes with tables.
func (c *counters) countTables(commits []reconcile.Commit) {
	type table struct {
		family ir.Family
		name   string
	}
	written := map[table]int{}
	for _, commit := range commits {
		for _, t := range commit.Result.Tables {
			at := table{t.Family, t.Table}
			written[at] += t.Written
			c.RulesTotal(t.Table, t.Family.String()).Set(float64(t.Rules))
			c.RulesLastSync(t.Table, t.Family.String()).Set(float64(written[at]))
		}
	}
}

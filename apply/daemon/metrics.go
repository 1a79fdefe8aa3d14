package daemon

import (
	"context"
	"strconv"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// newMetrics returns the metrics of a configuration. What counts failures and
// operations is there from the start, so that its first one shows as a rise.
func newMetrics(cfg *config.Config, version string) *serve.Metrics {
	m := serve.NewMetrics(cfg.ProxyMode(), version)
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
	}
	if servesLocalhost(cfg) {
		for _, f := range ir.Families() {
			m.LocalhostListeners.Of(f)
			m.LocalhostFailures.Of(f)
		}
	}
	for _, v := range [...]apply.Verb{apply.Add, apply.Change, apply.Remove} {
		m.Operations.Of(v)
	}
	return m
}

// measureTroubles exports what status tells beside the rules.
func (d *daemon) measureTroubles() {
	d.metrics.MeasureTroubles(func() serve.Troubles {
		var st Status
		d.faults.report(&st)
		others := d.neighbors.last()
		return serve.Troubles{Rejected: len(st.Rejected), NotServed: len(st.Down),
			BootFile:  d.boot != nil && d.boot.failed.Load() != nil,
			KubeProxy: d.peer.beside() != "",
			MayDrop:   len(others.Drops), MayDivert: len(others.Diverts)}
	})
	for _, severity := range [...]diag.Severity{diag.Error, diag.Warning} {
		d.metrics.MeasureFindings(severity.String(), func() int { return d.follower.findings.count(severity) })
	}
}

// measureConntrack exports how full the node's table of connections is.
func (d *daemon) measureConntrack() {
	number := func(name string) serve.KernelNumber {
		return func() (uint64, error) {
			text, err := kernelRoot.Read("proc/sys/net/netfilter/" + name)
			if err != nil {
				return 0, err
			}
			return strconv.ParseUint(text, 10, 64)
		}
	}
	d.metrics.MeasureConntrack(number("nf_conntrack_count"), number("nf_conntrack_max"))
}

// measureStore exports the memory of the Store.
func (d *daemon) measureStore() {
	d.metrics.MeasureStore(func() (bytes int) {
		d.store.View(func(s *snapshot.Snapshot) { bytes = s.Bytes() })
		return bytes
	})
}

// counterTimeout is how long a scrape waits for the kernel's counters.
const counterTimeout = 2 * time.Second

// countPackets exports what the kernel counts of a dataplane.
func (d *daemon) countPackets(c apply.Counters) {
	if c.Draining != nil {
		d.metrics.CountDraining(func() int { return len(c.Draining()) })
	}
	if c.InvalidDropped == nil {
		return
	}
	bounded := func(read func(context.Context) (uint64, error)) serve.KernelNumber {
		return func() (uint64, error) {
			ctx, cancel := context.WithTimeout(context.Background(), counterTimeout)
			defer cancel()
			return read(ctx)
		}
	}
	d.metrics.CountPackets(serve.PacketCounters{
		InvalidDropped:     bounded(c.InvalidDropped),
		LocalhostNodePorts: bounded(c.LocalhostNodePorts),
	})
}

// countProxied exports what the process carries itself, if it does.
func (d *daemon) countProxied(c apply.Counters) {
	if c.Proxied == nil && servesLocalhost(d.cfg) {
		c.Proxied = d.localhost.Counts
	}
	if c.Proxied != nil {
		d.metrics.MeasureProxy(c.Proxied)
	}
}

// count keeps the metrics.
func (d *daemon) count(s *reconcile.Sync) {
	seconds := s.Ended.Sub(s.Began).Seconds()
	m := d.metrics
	for _, f := range ir.Families() {
		m.SyncSeconds.Of(f).Observe(seconds)
		if s.Kind == reconcile.Full {
			m.SyncFullSeconds.Of(f).Observe(seconds)
		} else {
			m.SyncPartialSeconds.Of(f).Observe(seconds)
		}
	}
	if s.Err != nil {
		d.countFailure(s)
		d.countPending()
		return
	}
	c := d.follower.inForce()
	d.countPending()
	m.ServiceChanges.Add(float64(c.ServiceEvents))
	m.EndpointChanges.Add(float64(c.EndpointEvents))
	if !c.Since.IsZero() {
		m.EventSeconds.Observe(latency(s.Ended, c.Since))
	}
	for _, t := range c.Triggers {
		if t.At.After(d.began) { // what happened before says nothing of this process
			m.ProgrammingSeconds.Of(t.Family).Observe(latency(s.Ended, t.At))
		}
	}
	d.countChanges(s, c.Arrivals)
	m.Operations.Of(apply.Add).Add(float64(s.Done.Operations.Added))
	m.Operations.Of(apply.Change).Add(float64(s.Done.Operations.Changed))
	m.Operations.Of(apply.Remove).Add(float64(s.Done.Operations.Removed))
	m.DriftRepairs.Add(float64(total(s.Done.Drift)))
	m.Quarantined.Set(float64(len(s.Done.Refused)))
	d.countTables(s.Done.Commits)
	d.countBusy(s.Done.Commits)
	for _, f := range ir.Families() {
		m.LastSync.Of(f).Set(float64(s.Ended.UnixNano()) / 1e9)
		t := d.tallies.At(f)
		if s.Kind == reconcile.Full {
			t.reset(s.Work.Programs.Of(f))
		} else {
			t.change(s.Work.Changes.Of(f))
		}
		m.NoLocalEndpoints.Of(false, f).Set(float64(t.internal))
		m.NoLocalEndpoints.Of(true, f).Set(float64(t.external))
	}
}

// countChanges observes how long changes took that are in force now. What the first sync of a
// configuration finds is a start and no change, and a Service that the kernel refuses is not in force.
func (d *daemon) countChanges(s *reconcile.Sync, arrivals []watch.Arrival) {
	if !d.followed {
		return
	}
	refused := map[ir.Name]bool{}
	for _, r := range s.Done.Refused {
		refused[r.Service] = true
	}
	for _, a := range arrivals {
		if refused[a.Service] {
			continue
		}
		d.metrics.ChangeSeconds.Of(serve.SinceArrival).Observe(latency(s.Ended, a.At))
		if a.Triggered.After(d.began) {
			d.metrics.ChangeSeconds.Of(serve.SinceTrigger).Observe(latency(s.Ended, a.Triggered))
		}
	}
}

// countPending reports how many changes are not in force.
func (d *daemon) countPending() {
	services, endpoints := d.store.Events()
	d.metrics.ServiceChangesPending.Set(float64(services + d.follower.waiting.ServiceEvents))
	d.metrics.EndpointChangesPending.Set(float64(endpoints + d.follower.waiting.EndpointEvents))
}

// countFailure counts a sync that failed, for the family that it failed for.
// Both count where that is not known: nftables commits both in one
// transaction, and what cannot be read has no family.
func (d *daemon) countFailure(s *reconcile.Sync) {
	both := ir.Families()
	of := both[:]
	if n := len(s.Done.Commits); n > 0 && len(s.Done.Commits[n-1].Result.Failed) > 0 {
		of = s.Done.Commits[n-1].Result.Failed
	}
	for _, f := range of {
		d.metrics.RestoreFailures.Of(f).Inc()
		d.metrics.NFTSyncFailures.Of(f).Inc()
		if s.Kind != reconcile.Full {
			d.metrics.PartialRestoreFailures.Of(f).Inc()
		}
	}
}

// countBusy counts the commits that could not remove all that is stale.
func (d *daemon) countBusy(commits []reconcile.Commit) {
	for _, c := range commits {
		for f, n := range c.Result.Busy.All() {
			if n > 0 {
				d.metrics.NFTCleanupFailures.Of(f).Inc()
			}
		}
	}
}

// countTables counts the rules of dataplanes that have them in tables.
func (d *daemon) countTables(commits []reconcile.Commit) {
	type table struct {
		family ir.Family
		name   string
	}
	written := map[table]int{}
	for _, commit := range commits {
		for _, c := range commit.Result.Tables {
			at := table{c.Family, c.Table}
			written[at] += c.Written
			d.metrics.RulesTotal.Of(c.Table, c.Family).Set(float64(c.Rules))
			d.metrics.RulesLastSync.Of(c.Table, c.Family).Set(float64(written[at]))
		}
	}
}

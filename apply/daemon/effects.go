package daemon

import (
	"log/slog"
	"sync/atomic"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
	render "github.com/proxyc/proxyc/render/userspace"
)

// effects are what follows a sync that succeeded, beside the rules: stale UDP flows, health
// checks, node ports at localhost, the boot file and the Node's condition.
type effects struct {
	flows     *conntrack.Cleaner
	checks    checks
	localhost *userspace.Localhost
	boot      *bootFile
	condition *watch.NodeCondition

	programmed *atomic.Bool // what objects mean was in force once
	proxies    bool         // node ports may have to be served at localhost
	metrics    *serve.Metrics
	faults     *faults
	log        *slog.Logger
}

func newEffects(s *session, checks checks) *effects {
	cfg := s.config.Config
	e := &effects{checks: checks, localhost: &s.handover.localhost, condition: s.input.condition,
		programmed: &s.programmed, proxies: servesLocalhost(cfg), metrics: s.metrics, faults: s.faults, log: s.log.Logger}
	e.flows = conntrack.NewCleaner(cfg.SyncPeriod(), e.cleaned)
	e.localhost.Follow(e.log, e.localhostChanged)
	if s.BootFrom != "" {
		e.boot = &bootFile{files: s.Files, path: s.BootFrom, log: e.log}
	}
	return e
}

// follow does what follows a sync, in the order in which it matters to packets.
func (e *effects) follow(s *reconcile.Sync) {
	e.flows.Ended(conntrack.Work{Programs: s.Work.Programs, Changes: s.Work.Changes, All: s.Kind == reconcile.Full, Removed: s.Done.Removed})
	e.checks.sync(s)
	e.serveLocalhost(s)
	e.boot.offer()
	if !e.programmed.Swap(true) {
		e.condition.Poke()
	}
}

// pending returns what still has to follow the last sync before the node is ready; "": nothing.
func (e *effects) pending() string {
	if e.flows.Busy() {
		return "stale UDP flows are being deleted"
	}
	return e.checks.failing()
}

// report completes a Status that has the last sync. The order matters: flows are busy before
// a sync is in the status.
func (e *effects) report(st *Status) {
	st.Synced = st.Synced && !e.flows.Busy()
	e.boot.report(st)
}

// cleaned notes what was done about the UDP flows that held on to what is gone.
func (e *effects) cleaned(c conntrack.Cleaned) {
	e.faults.retrying("stale "+c.Family.String()+" UDP flows", c.Err)
	if c.Err != nil {
		e.metrics.ConntrackFailures.Of(c.Family).Inc()
	}
	e.log.Debug("deleted stale UDP flows", "family", c.Family.String(), "flows", c.Deleted, "took", c.Took)
	e.metrics.ConntrackSeconds.Of(c.Family).Observe(c.Took.Seconds())
	e.metrics.ConntrackDeleted.Of(c.Family).Add(float64(c.Deleted))
}

// serveLocalhost follows what a sync changed.
func (e *effects) serveLocalhost(s *reconcile.Sync) {
	if s.Kind == reconcile.Full {
		e.localhost.Replace(s.Work.Programs)
	} else {
		e.localhost.Change(s.Work.Changes)
	}
	e.countLocalhost()
}

// localhostChanged notes that a node port is not served at localhost, or is again.
func (e *effects) localhostChanged(f ir.Family, l *render.Listener, err error) {
	e.faults.setDown("node port of "+l.Port.String()+" at localhost", l.Listen.String(), err)
	if err != nil {
		e.metrics.LocalhostFailures.Of(f).Inc()
	}
	e.countLocalhost()
}

func (e *effects) countLocalhost() {
	if !e.proxies {
		return
	}
	for _, c := range e.localhost.Counts() {
		e.metrics.LocalhostListeners.Of(c.Family).Set(float64(c.Listeners))
	}
}

// measureProxied exports what the process carries itself, if it does.
func (e *effects) measureProxied(c apply.Counters) {
	if c.Proxied == nil && e.proxies {
		c.Proxied = e.localhost.Counts
	}
	if c.Proxied != nil {
		e.metrics.MeasureProxy(c.Proxied)
	}
}

package daemon

import (
	"cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
	render "github.com/proxyc/proxyc/render/userspace"
)

// effects is the work after a successful sync besides the rules: stale flows, health checks,
// node ports on localhost, the boot file and the Node's condition.
type effects struct {
	*session
	flows     *conntrack.Cleaner
	checks    checks
	localhost *userspace.Localhost
	boot      *bootFile
	proxies   bool // node ports on localhost may have to be proxied
}

func newEffects(s *session, checks checks) *effects {
	e := &effects{session: s, checks: checks, proxies: servesLocalhost(s.config.Config)}
	e.flows = conntrack.NewCleaner(s.config.Config.SyncPeriod(), e.cleaned)
	e.localhost = userspace.NewLocalhost(s.log.Logger, e.localhostChanged)
	if s.BootFrom != "" {
		e.boot = &bootFile{files: s.Files, path: s.BootFrom, log: s.log.Logger}
	}
	return e
}

// follow does the work after a sync, in the order of its relevance for packets.
func (e *effects) follow(s *reconcile.Sync) {
	e.flows.EndCommit(conntrack.Work{Programs: s.Work.Programs, Changes: s.Work.Changes, All: s.Kind == reconcile.Full, Removed: s.Done.Removed, Missing: s.Done.Drift.Total() > 0})
	e.checks.sync(s)
	e.serveLocalhost(s)
	e.boot.markChanged()
	if !e.input.inForce.Swap(true) {
		e.input.condition.Trigger()
	}
}

// pending describes work that must complete before the node is ready; "" if there is none.
func (e *effects) pending() string {
	if e.flows.Busy() {
		return "stale flows are being deleted"
	}
	return cmp.Or(e.checks.IPv4.Failing(), e.checks.IPv6.Failing())
}

// report completes a Status that contains the last sync. The order matters: flows become busy
// before the Status contains the sync.
func (e *effects) report(st *status.Status) {
	st.Synced = st.Synced && !e.flows.Busy()
	e.boot.report(st)
}

// cleaned records the result of a search for stale flows.
func (e *effects) cleaned(c conntrack.Cleaned) {
	e.faults.retrying("stale "+c.Family.String()+" flows", c.Err)
	if c.Err != nil {
		e.metrics.ConntrackFailures.Of(c.Family).Inc()
	}
	e.log.Debug("deleted stale flows", "family", c.Family.String(), "flows", c.Deleted, "took", c.Took)
	e.metrics.ConntrackSeconds.Of(c.Family).Observe(c.Took.Seconds())
	e.metrics.ConntrackDeleted.Of(c.Family).Add(float64(c.Deleted))
}

// serveLocalhost applies the changes of a sync to the node ports on localhost.
func (e *effects) serveLocalhost(s *reconcile.Sync) {
	if s.Kind == reconcile.Full {
		e.localhost.Replace(s.Work.Programs)
	} else {
		e.localhost.Change(s.Work.Changes)
	}
	e.countLocalhost()
}

// localhostChanged records the failure of a node port on localhost, or its end.
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

// measureProxied exports the proxied connections, and the packets that are rejected instead, if
// there may be any.
func (e *effects) measureProxied(c apply.Counters) {
	if c.LocalhostRejected != nil && e.proxies {
		e.metrics.CountLocalhostRejected(bounded(c.LocalhostRejected))
	}
	if c.Proxied == nil && e.proxies {
		c.Proxied = e.localhost.Counts
	}
	if c.Proxied != nil {
		e.metrics.MeasureProxy(c.Proxied)
	}
}

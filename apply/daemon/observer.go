package daemon

import (
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// observer records the Reconciler's reports in health, metrics, status and log. Only the
// Reconciler's goroutine uses it.
type observer struct {
	*session
	counters *counters
	progress *progress
	drift    *drift

	followed  bool            // a sync of compiled objects succeeded: later ones apply changes
	requests  uint64          // for a sync, in the last State
	waiting   time.Time       // in the last State
	unremoved map[string]bool // objects after the last sync
}

// report records the state of the Reconciler.
func (o *observer) report(st reconcile.State) { o.reportReason(st, st.NotReady()) }

// reportReason is report, with the reason why the node is not ready; "" if it is.
func (o *observer) reportReason(st reconcile.State, why string) {
	if requests := st.Wanted + st.Doubts; requests != o.requests {
		o.requests = requests
		for _, f := range ir.Families() {
			o.counters.LastQueued.Of(f).SetToCurrentTime()
		}
	}
	o.counters.countPending()
	progress := !o.waiting.IsZero() && st.Waiting != o.waiting
	o.waiting = st.Waiting
	for _, f := range ir.Families() {
		if progress || st.InForce() {
			o.health.Updated(f)
		}
		if !st.InForce() {
			o.health.Queued(f)
		}
	}
	o.health.SetNotReady(why)
	o.progress.setSynced(st.InForce())
	o.counters.store.Acknowledge() // last, so that a change is always reported as pending or as not in force
}

// record adds a sync to the status, after all work that follows it.
func (o *observer) record(s *reconcile.Sync) {
	o.drift.add(s)
	o.progress.add(s)
}

// logSync logs the changes of a sync.
func (o *observer) logSync(s *reconcile.Sync) {
	if s.Done.Drift.Total() > 0 {
		o.drift.logRepairs(&s.Done)
	}
	for _, r := range s.Done.RefusedNow {
		o.log.Error("the kernel refuses the rules of a Service: it has none until it changes or the next full sync", "service", r.Service.String(), "err", r.Reason)
	}
	o.logRemovals(s.Done.RefusedRemovals)
	say := o.log.Debug
	if (s.Done.Operations.Total() > 0 || !o.followed) && s.Kind == reconcile.Full && s.Done.Drift.Total() == 0 {
		say = o.log.Info
	}
	what := "synced"
	if s.Done.Operations.Total() == 0 {
		what = "synced: nothing to change"
	}
	say(what, "kind", s.Kind.String(), "operations", s.Done.Operations.String(), "took", s.Ended.Sub(s.Began))
}

// logRemovals logs new refused removals, and those that no longer are.
func (o *observer) logRemovals(refused []apply.Refusal) {
	now := map[string]bool{}
	for i, s := range refused {
		if now[s.Object] = true; !o.unremoved[s.Object] {
			o.log.Error("clients reach a removed object: the removal is retried", "err", &refused[i])
		}
	}
	for object := range o.unremoved {
		if !now[object] {
			o.log.Info("an object that the kernel refused to remove was removed", "object", object)
		}
	}
	o.unremoved = now
}

// maxRemoved is how many frontends a start may remove before logRemoved warns, if others remain.
const maxRemoved = 10

// logRemoved warns if the first sync of the process removed most frontends, as with an API server that
// was restored from nothing. While the process runs, the Store warns about removed objects.
func (o *observer) logRemoved(s *reconcile.Sync) {
	gone, now := len(s.Done.Removed), 0
	for _, p := range ir.Present(s.Work.Programs) {
		for i := range p.Services {
			now += len(p.Services[i].Frontends)
		}
	}
	if gone > 0 && now == 0 || gone >= maxRemoved && gone > now {
		o.log.Warn("most Services from before the start no longer exist: their rules are removed", "frontends removed", gone, "now", now)
	}
}

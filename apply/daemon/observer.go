package daemon

import (
	"log/slog"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/ir"
)

// observer enters what the Reconciler reports into health, metrics, status and log. It is used
// by the Reconciler's goroutine alone.
type observer struct {
	health   *serve.Health
	counters *counters
	progress *progress
	drift    *drift
	proofs   *proofs
	log      *slog.Logger

	followed bool      // a sync of what objects mean has succeeded: what comes is a change
	requests uint64    // for a sync, of the last State
	waiting  time.Time // of the last State
}

// report enters what is wanted and what is known of the kernel.
func (o *observer) report(st reconcile.State) { o.reportReason(st, st.NotReady()) }

// reportReason is report, with why the node is not ready; "": it is.
func (o *observer) reportReason(st reconcile.State, why string) {
	o.proofs.resume() // no sync is under way
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
}

// settle counts and logs what a sync did, and reports whether it succeeded.
func (o *observer) settle(s *reconcile.Sync) bool {
	o.counters.count(s, o.followed)
	if s.Err != nil {
		o.log.Error("the rules are behind", "err", s.Err)
		return false
	}
	o.logSync(s)
	o.proofs.add(s.Work)
	return true
}

// record enters a sync into the status, when all that follows it is done.
func (o *observer) record(s *reconcile.Sync) {
	o.drift.add(s)
	o.progress.add(s)
}

// logSync logs what a sync did.
func (o *observer) logSync(s *reconcile.Sync) {
	if total(s.Done.Drift) > 0 {
		o.drift.tell(&s.Done)
	}
	for _, r := range s.Done.RefusedNow {
		o.log.Error("the kernel refuses the rules of a Service, which is left out until it changes or the next full comparison", "service", r.Service.String(), "err", r.Reason)
	}
	say := o.log.Debug
	if total(s.Done.Operations) > 0 && s.Kind == reconcile.Full && total(s.Done.Drift) == 0 {
		say = o.log.Info
	}
	say("synced", "kind", s.Kind.String(), "operations", s.Done.Operations.String(), "took", s.Ended.Sub(s.Began))
}

// mostGone is how many frontends a start may remove without a word, where others stay.
const mostGone = 10

// logGone warns where the first sync of the process removed most of what the node had. While
// the process runs the Store warns of objects that go: an API server that was restored from
// nothing reports so, too.
func (o *observer) logGone(s *reconcile.Sync) {
	gone, now := len(s.Done.Removed), 0
	for _, p := range ir.Present(s.Work.Programs) {
		for i := range p.Services {
			now += len(p.Services[i].Frontends)
		}
	}
	if gone > 0 && now == 0 || gone >= mostGone && gone > now {
		o.log.Warn("most of what was in force before the start is gone: its rules go, too", "frontends removed", gone, "now", now)
	}
}

func total(c apply.Count) int { return c.Added + c.Changed + c.Removed }

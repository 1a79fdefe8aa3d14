package daemon

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// progress is the results of a session's syncs.
type progress struct {
	mu      sync.Mutex
	syncs   status.Syncs
	applied func() ir.Programs // nil until known
	kernel  apply.Counters
	plan    plan // of the last sync
	idle    ir.PerFamily[status.Idle]
}

// setSynced sets whether the kernel matches the desired rules.
func (p *progress) setSynced(synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncs.Synced = synced
}

// add records the result of a sync.
func (p *progress) add(sync *reconcile.Sync) {
	plan := newPlan(sync)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
	st := &p.syncs
	if sync.Err != nil {
		st.LastError = &status.LastError{At: sync.Ended, Error: sync.Err.Error()}
		return
	}
	status.NoteIdle(&p.idle, sync.Work.Programs, sync.Work.Changes, sync.Ended)
	st.Generation++
	st.LastSync, st.LastKind, st.Operations = sync.Ended, sync.Kind.String(), sync.Done.Operations
	if st.Operations.Total() > 0 {
		st.LastChange = &status.LastChange{At: st.LastSync, Kind: st.LastKind, Operations: st.Operations}
	}
	st.Refused = nil
	for _, r := range slices.Concat(sync.Done.Refused, sync.Done.RefusedRemovals) {
		st.Refused = append(st.Refused, status.Problem{Object: r.Subject(), Reason: r.Reason.Error()})
	}
}

// setApplied sets the function that returns the applied Programs.
func (p *progress) setApplied(f func() ir.Programs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied = f
}

// programs returns the applied Programs; zero while unknown.
func (p *progress) programs() ir.Programs {
	p.mu.Lock()
	applied := p.applied
	p.mu.Unlock()
	if applied == nil {
		return ir.Programs{}
	}
	return applied()
}

// setRestored sets the source of restored rules, and when it was saved; "" if rules of objects are
// applied. It reports whether the source changed.
func (p *progress) setRestored(from string, saved time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.syncs.Restored != from
	p.syncs.Restored, p.syncs.RestoredOf, p.syncs.Synced = from, saved, false
	return changed
}

// setCounters sets what the dataplane counts.
func (p *progress) setCounters(c apply.Counters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kernel = c
}

// traffic reads the traffic of Services.
func (p *progress) traffic(store *watch.Store) *status.Traffic {
	p.mu.Lock()
	read := p.kernel.Traffic
	p.mu.Unlock()
	if read == nil {
		return &status.Traffic{Error: "traffic is not counted: start proxyc watch with --service-metrics=services"}
	}
	sums, err := bounded(read)()
	if err != nil {
		return &status.Traffic{Error: err.Error()}
	}
	return status.NewTraffic(time.Now(), sums, p.programs(), func(port ir.ServicePort) (text string) {
		p.mu.Lock()
		if at := cmp.Or(p.idle.IPv4[port], p.idle.IPv6[port]); !at.IsZero() {
			text = ", since " + at.Format(time.DateTime)
		}
		p.mu.Unlock()
		store.View(func(snap *snapshot.Snapshot) {
			for _, s := range snap.Slices(port.Service) {
				text += ", EndpointSlice " + s.Name.String()
			}
		})
		return text
	})
}

// report adds the syncs to a Status that already contains the pending changes. A later change may
// be applied; an earlier one may not be.
func (p *progress) report(st *status.Status) {
	p.mu.Lock()
	st.Syncs = p.syncs
	drains := p.kernel.Draining
	p.mu.Unlock()
	st.Synced = st.Synced && st.Pending == 0 && st.Restored == ""
	if drains != nil {
		st.Draining = drains()
	}
}

// plan is the content of /debug/proxyc/plan: the operations of the last sync.
type plan struct {
	At    time.Time `json:"at,omitzero"`
	Kind  string    `json:"kind,omitempty"`
	Error string    `json:"error,omitempty"` // why it failed, or may have
	// Total counts all operations, including those on refused Services.
	Total      apply.Count       `json:"total"`
	Operations []apply.Operation `json:"operations"` // the first operations
	More       int               `json:"more,omitempty"`
}

func newPlan(s *reconcile.Sync) plan {
	p := plan{At: s.Ended, Kind: s.Kind.String(), Total: s.Done.Operations, Operations: []apply.Operation{}}
	if s.Err != nil {
		p.Error = s.Err.Error()
	}
	for _, one := range s.Done.Commits {
		rest := reconcile.OperationsShown - len(p.Operations)
		p.Operations = append(p.Operations, one.First[:min(rest, len(one.First))]...)
	}
	p.More = p.Total.Total() - len(p.Operations)
	return p
}

// serveIR serves the applied Programs.
func (p *progress) serveIR(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	ir.WriteJSON(w, p.programs()) // an error means that the client disconnected
}

// servePlan serves the last plan.
func (p *progress) servePlan(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	plan := p.plan
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.Encode(plan) // an error means that the client disconnected
}

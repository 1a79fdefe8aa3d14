package daemon

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// progress is what the syncs of a session have achieved.
type progress struct {
	mu      sync.Mutex
	syncs   Syncs
	inForce func() ir.Programs // nil: not known yet
	drains  func() []apply.Drain
	plan    plan // of the last sync
}

// setSynced sets whether the kernel holds what is wanted.
func (p *progress) setSynced(synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncs.Synced = synced
}

// add takes what a sync did.
func (p *progress) add(sync *reconcile.Sync) {
	plan := newPlan(sync)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
	st := &p.syncs
	if sync.Err != nil {
		st.LastError = &LastError{sync.Ended, sync.Err.Error()}
		return
	}
	st.Generation++
	st.LastSync, st.LastKind, st.Operations = sync.Ended, sync.Kind.String(), sync.Done.Operations
	if total(st.Operations) > 0 {
		st.LastChange = &LastChange{st.LastSync, st.LastKind, st.Operations}
	}
	st.Quarantined = nil
	for _, r := range sync.Done.Refused {
		st.Quarantined = append(st.Quarantined, Refused{r.Service.String(), r.Reason.Error()})
	}
}

// setInForce sets what returns the Programs in force.
func (p *progress) setInForce(f func() ir.Programs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inForce = f
}

// programs returns the Programs in force; nil while they are not known.
func (p *progress) programs() ir.Programs {
	p.mu.Lock()
	inForce := p.inForce
	p.mu.Unlock()
	if inForce == nil {
		return ir.Programs{}
	}
	return inForce()
}

// setHeld sets whose rules are in force in place of what objects mean; "": nobody's. It
// reports whether that is new.
func (p *progress) setHeld(from string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.syncs.Held != from
	p.syncs.Held, p.syncs.Synced = from, false
	return changed
}

// setDraining sets what returns the backends that drain; nil: nothing does.
func (p *progress) setDraining(f func() []apply.Drain) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drains = f
}

// report adds the syncs to a Status that has what is pending already: a change that came
// after that may be in force, and one that came before it may not.
func (p *progress) report(st *Status) {
	p.mu.Lock()
	st.Syncs = p.syncs
	drains := p.drains
	p.mu.Unlock()
	st.Synced = st.Synced && st.Pending == 0 && st.Held == ""
	if drains != nil {
		st.Draining = drains()
	}
}

// plan is what a sync was to do, as /debug/proxyc/plan tells it.
type plan struct {
	At    time.Time `json:"at,omitzero"`
	Kind  string    `json:"kind,omitempty"`
	Error string    `json:"error,omitempty"` // why it was not, or not known to be, carried out
	// Total counts all operations, those on refused Services included.
	Total      apply.Count       `json:"total"`
	Operations []apply.Operation `json:"operations"` // the first of them
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
	p.More = total(p.Total) - len(p.Operations)
	return p
}

// serveIR serves the Programs in force.
func (p *progress) serveIR(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	ir.WriteJSON(w, p.programs()) // an error is the client's, who went away
}

// servePlan serves the last plan.
func (p *progress) servePlan(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	plan := p.plan
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.Encode(plan) // an error is the client's, who went away
}

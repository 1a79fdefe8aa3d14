package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

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

// serveIR tells the Programs in force.
func (s *state) serveIR(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	ir.WriteJSON(w, s.programs()) // an error is the client's, who went away
}

// servePlan tells the last plan.
func (s *state) servePlan(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	p := s.plan
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.Encode(p) // an error is the client's, who went away
}

// serveTrace traces a packet through the Programs in force. Its parameters are
// the flags of proxyc trace: from, to, output.
func (d *daemon) serveTrace(w http.ResponseWriter, r *http.Request) {
	t, err := d.trace(r.FormValue("from"), r.FormValue("to"))
	var body bytes.Buffer
	contentType := "text/plain; charset=utf-8"
	switch output := r.FormValue("output"); {
	case err != nil:
	case output == "" || output == "text":
		err = t.writeText(&body)
	case output == "json":
		contentType = "application/json"
		err = t.writeJSON(&body)
	default:
		err = errors.New("output: must be text or json, got " + output)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(body.Bytes()) // an error is the client's, who went away
}

func (d *daemon) trace(from, to string) (t traced, err error) {
	programs := d.state.programs()
	if programs.IPv4 == nil {
		return t, errors.New("nothing is in force yet")
	}
	interfaces, err := d.follower.interfaces()
	if err != nil {
		return t, err
	}
	d.store.View(func(snap *snapshot.Snapshot) {
		t, err = (&scene{snap: snap, node: d.nodeName, programs: programs, interfaces: interfaces, known: true}).trace(from, to)
	})
	return t, err
}

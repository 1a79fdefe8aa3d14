package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/logging"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// pages are the HTTP handlers of a session.
type pages struct {
	options  *Options
	started  time.Time
	cfg      *config.Config
	node     string
	log      *logging.Logger
	store    *watch.Store
	follower *follower
	metrics  *serve.Metrics
	progress *progress
	status   *collector
	foreign  *foreignRules
}

// public returns the handler of the metrics server.
func (p *pages) public() http.Handler {
	debug := &serve.Debug{
		Name: "proxyc", Version: p.options.Version, Mode: p.cfg.ProxyMode(), Metrics: p.metrics,
		Config:    func() any { return p.cfg },
		Started:   p.started,
		Profiling: p.cfg.EnableProfiling,
		SetVerbosity: func(v uint32) error {
			p.log.SetVerbosity(v)
			return nil
		},
		Pages: map[string]http.Handler{
			"/debug/proxyc/ir":    http.HandlerFunc(p.progress.serveIR),
			"/debug/proxyc/plan":  http.HandlerFunc(p.progress.servePlan),
			"/debug/proxyc/trace": http.HandlerFunc(p.serveTrace),
		},
	}
	if p.cfg.Enabled(config.GateFlagz) {
		debug.Flags = func() map[string]string { return p.options.Flags(p.cfg) }
	}
	if p.cfg.Enabled(config.GateStatusz) {
		debug.Now = time.Now
	}
	mux := http.NewServeMux()
	mux.HandleFunc(status.StatusPath, p.serveStatus)
	mux.Handle("/", debug.Handler())
	return mux
}

// private returns the handler of the status socket.
func (p *pages) private() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(status.StatusPath, p.serveStatus)
	mux.HandleFunc(status.IRPath, p.progress.serveIR)
	mux.HandleFunc(status.KnownPath, p.serveKnown)
	return mux
}

// serveStatus serves the Status.
func (p *pages) serveStatus(w http.ResponseWriter, r *http.Request) {
	st := p.status.get()
	p.foreign.report(r.Context(), &st)
	reportSettings(&st)
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(st) // an error means that the client disconnected
}

// serveKnown serves Known. If a sync is due, Known is newer than the applied Programs.
func (p *pages) serveKnown(w http.ResponseWriter, _ *http.Request) {
	k := status.Known{Config: p.cfg}
	k.Findings, _ = p.follower.findings.first(math.MaxInt)
	p.store.View(func(snap *snapshot.Snapshot) { // the follower changes its facts while the Store is locked
		k.Facts, k.Snapshot = p.follower.facts, snap.Document()
	})
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(k) // an error means that the client disconnected
}

// serveTrace traces a packet through the applied Programs. Its parameters are the flags of proxyc
// trace: from, to, output.
func (p *pages) serveTrace(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	contentType := "text/plain; charset=utf-8"
	input := TraceInput{Node: p.node, From: r.FormValue("from"), To: r.FormValue("to"), Output: cmp.Or(r.FormValue("output"), "text")}
	if input.Output == "json" {
		contentType = "application/json"
	}
	if err := p.trace(&body, input); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(body.Bytes()) // an error means that the client disconnected
}

func (p *pages) trace(w io.Writer, input TraceInput) (err error) {
	if input.Output != "text" && input.Output != "json" {
		return errors.New("output: must be text or json, got " + input.Output)
	}
	if input.Programs = p.progress.programs(); input.Programs.IPv4 == nil {
		return errors.New("no rules are applied yet")
	}
	if input.Interfaces, err = p.follower.interfaces(); err != nil {
		return err
	}
	input.Findings, _ = p.follower.findings.first(math.MaxInt)
	p.store.View(func(snap *snapshot.Snapshot) {
		input.Snapshot = snap
		err = p.options.Trace(w, input)
	})
	return err
}

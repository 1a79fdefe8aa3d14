package daemon

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/logging"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// pages are the HTTP handlers of a session.
type pages struct {
	options  *Options
	started  time.Time
	cfg      *config.Config
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
			"/debug/proxyc/ir":   http.HandlerFunc(p.progress.serveIR),
			"/debug/proxyc/plan": http.HandlerFunc(p.progress.servePlan),
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
	mux.HandleFunc(status.TrafficPath, func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(p.progress.traffic(p.store)) // an error means that the client disconnected
	})
	return mux
}

// serveStatus serves the Status.
func (p *pages) serveStatus(w http.ResponseWriter, r *http.Request) {
	st := p.status.get()
	p.foreign.report(r.Context(), &st)
	if exposed := sysctl.Exposure(host.Root, st.Mode); exposed != "" { // a setting that the configuration does not contain
		st.Settings = append(st.Settings, exposed)
	}
	st.Refusing = p.progress.traffic(p.store).Refusing(3) // enough to begin with
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

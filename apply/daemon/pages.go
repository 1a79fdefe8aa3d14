package daemon

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// public returns the handler of the metrics server.
func (s *servers) public() http.Handler {
	debug := &serve.Debug{
		Name: "proxyc", Version: s.Version, Mode: s.config.Config.ProxyMode(), Metrics: s.metrics,
		Config:    func() any { return s.config.Config },
		Started:   s.input.started,
		Profiling: s.config.Config.EnableProfiling,
		SetVerbosity: func(v uint32) error {
			s.log.SetVerbosity(v)
			return nil
		},
		Pages: map[string]http.Handler{
			"/debug/proxyc/ir":   http.HandlerFunc(s.rules.observer.progress.serveIR),
			"/debug/proxyc/plan": http.HandlerFunc(s.rules.observer.progress.servePlan),
		},
	}
	if s.config.Config.Enabled(config.GateFlagz) {
		debug.Flags = func() map[string]string { return s.Flags(s.config.Config) }
	}
	if s.config.Config.Enabled(config.GateStatusz) {
		debug.Now = time.Now
	}
	mux := http.NewServeMux()
	mux.HandleFunc(status.StatusPath, s.serveStatus)
	mux.Handle("/", debug.Handler())
	return mux
}

// private returns the handler of the status socket.
func (s *servers) private() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(status.StatusPath, s.serveStatus)
	mux.HandleFunc(status.IRPath, s.rules.observer.progress.serveIR)
	mux.HandleFunc(status.KnownPath, s.serveKnown)
	mux.HandleFunc(status.TrafficPath, func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(s.rules.observer.progress.traffic(s.input.store)) // an error means that the client disconnected
	})
	return mux
}

// serveStatus serves the Status.
func (s *servers) serveStatus(w http.ResponseWriter, r *http.Request) {
	st := s.status.get()
	s.foreign.report(r.Context(), &st)
	if exposed := sysctl.Exposure(host.Root, st.Mode); exposed != "" { // a setting that the configuration does not contain
		st.Settings = append(st.Settings, exposed)
	}
	st.Refusing = s.rules.observer.progress.traffic(s.input.store).Refusing(3) // enough to begin with
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(st) // an error means that the client disconnected
}

// serveKnown serves Known. If a sync is due, Known is newer than the applied Programs.
func (s *servers) serveKnown(w http.ResponseWriter, _ *http.Request) {
	k := status.Known{Config: s.config.Config}
	k.Findings, _ = s.input.follower.findings.first(math.MaxInt)
	s.input.store.View(func(snap *snapshot.Snapshot) { // the follower changes its facts while the Store is locked
		k.Facts, k.Snapshot = s.input.follower.facts, snap.Document()
	})
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(k) // an error means that the client disconnected
}

package daemon

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// lastEvent is how long the end waits until the cluster was told why.
const lastEvent = 900 * time.Millisecond

// startEvents are told of the node at each start, under kube-proxy's reasons.
// DefaultMode is proxyc's: kube-proxy 1.36 only logs which mode it takes.
func startEvents(r *config.Resolved) []watch.Event {
	event := func(reason, note string) watch.Event {
		return watch.Event{Warning: note != "", Reason: reason, Action: "StartKubeProxy", Note: note}
	}
	events := []watch.Event{event("Starting", "")}
	if r.ModeDefaulted() {
		events = append(events, event("DefaultMode",
			"mode is not set, "+string(r.Config.ProxyMode())+" is used: set it, since kube-proxy 1.40 will use nftables"))
	}
	if r.Config.ProxyMode() == ir.ModeIPVS {
		events = append(events, event("IPVSDeprecation",
			"The ipvs proxier is now deprecated and may be removed in a future release. Please use 'nftables' instead."))
	}
	return events
}

// serving runs a server, and tells in the cluster if that fails for good.
func (d *daemon) serving(s *serve.Server, reason string) func(context.Context) error {
	s.Down = func(err error) { d.faults.setDown(s.Name, s.Addr, err) }
	return func(ctx context.Context) error {
		err := s.Run(ctx)
		if err != nil {
			ctx, cancel := context.WithTimeout(ctx, lastEvent)
			defer cancel()
			d.events.SendLast(ctx, watch.Event{Warning: true, Reason: reason, Action: "StartKubeProxy", Note: err.Error()})
		}
		return err
	}
}

func (d *daemon) healthServer() *serve.Server {
	return &serve.Server{Name: "healthz server", Addr: d.cfg.HealthzBindAddress,
		Handler: d.health.Handler(d.metrics), Hosts: d.hosts, HardFail: d.cfg.BindAddressHardFail, Log: d.log.Logger}
}

// statusServer answers proxyc status, where the metrics server cannot be reached, and
// tells what is in force, as its socket is open to the owner alone.
func (d *daemon) statusServer() *serve.Server {
	mux := d.statusHandler()
	mux.HandleFunc(IRPath, d.progress.serveIR)
	mux.HandleFunc(KnownPath, d.serveKnown)
	s := &serve.Server{Name: "status server", Log: d.log.Logger, Handler: mux}
	if d.StatusSocket != "" {
		s.Addr = UnixPrefix + d.StatusSocket
	}
	s.Down = func(err error) { d.faults.setDown(s.Name, s.Addr, err) }
	return s
}

func (d *daemon) statusHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc(StatusPath, func(w http.ResponseWriter, r *http.Request) {
		st := d.status.get()
		d.neighbors.report(r.Context(), &st)
		serveStatus(w, st)
	})
	return mux
}

func (d *daemon) metricsServer() *serve.Server {
	pages := &serve.Debug{
		Name: "proxyc", Version: d.Version, Mode: d.cfg.ProxyMode(), Metrics: d.metrics,
		Config:    func() any { return d.cfg },
		Started:   d.process.started,
		Profiling: d.cfg.EnableProfiling,
		SetVerbosity: func(v uint32) error {
			setVerbosity(d.log.level, v)
			return nil
		},
		Pages: map[string]http.Handler{
			"/debug/proxyc/ir":    http.HandlerFunc(d.progress.serveIR),
			"/debug/proxyc/plan":  http.HandlerFunc(d.progress.servePlan),
			"/debug/proxyc/trace": http.HandlerFunc(d.serveTrace),
		},
	}
	if d.cfg.Enabled(config.GateFlagz) {
		pages.Flags = func() map[string]string { return d.Flags(d.cfg) }
	}
	if d.cfg.Enabled(config.GateStatusz) {
		pages.Now = time.Now
	}
	mux := d.statusHandler()
	mux.Handle("/", pages.Handler())
	return &serve.Server{Name: "metrics server", Addr: d.cfg.MetricsBindAddress, Handler: mux, Hosts: d.hosts, HardFail: d.cfg.BindAddressHardFail, Log: d.log.Logger}
}

// cutOff says why the daemon is not ready any more, if it could not hear the
// API server for too long.
func (d *daemon) cutOff() string {
	lost := d.contact.Outage()
	after := d.UnreadyAfter
	if ago := time.Since(lost.Since); !lost.Since.IsZero() && after > 0 && ago >= after {
		return fmt.Sprintf("no contact with the API server for %s: %s: %s", ago.Round(time.Second), lost.Resource, lost.Cause)
	}
	return ""
}

// lastHeard is what is heard of the API server, for the metrics.
func (d *daemon) lastHeard() []serve.LastHeard {
	var all []serve.LastHeard
	for _, r := range d.contact.Resources() {
		if r.NotGiven != "" {
			continue // it is not waited for
		}
		all = append(all, serve.LastHeard{Resource: r.Resource, At: r.Last, Lost: !r.Lost.IsZero()})
	}
	return all
}

func (d *daemon) nodeState(n *watch.NodeState) {
	d.cluster.state = nil
	if n != nil {
		d.cluster.state = &serve.Node{Terminating: n.Terminating, Taints: n.Taints}
	}
	d.health.SetNode(d.cluster.state)
}

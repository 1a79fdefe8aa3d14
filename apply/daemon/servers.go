package daemon

import (
	"context"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/config"
)

// lastEvent is how long the end of the process waits until its last event is sent.
const lastEvent = 900 * time.Millisecond

// startEvents returns the events about the node at a start, with kube-proxy's reasons.
func startEvents(r *config.Resolved) []watch.Event {
	events := []watch.Event{startEvent("Starting", "")}
	if r.ModeDefaulted() {
		events = append(events, startEvent("KubeProxyDefaultMode",
			"mode is not set, "+string(r.Config.ProxyMode())+" is used: set it, since kube-proxy 1.40 will use nftables"))
	}
	return append(events, host.ModeOf(r.Config.ProxyMode()).Events...)
}

// startEvent returns an event of a start; one with a note is a warning.
func startEvent(reason, note string) watch.Event {
	return watch.Event{Warning: note != "", Reason: reason, Action: "StartKubeProxy", Note: note}
}

// servers are the HTTP servers of a session.
type servers struct {
	*session
	hosts []string // names of the node
}

// all returns the functions that run the servers.
func (s *servers) all() []func(context.Context) error {
	return []func(context.Context) error{
		s.required(s.healthServer(), "FailedToStartProxierHealthcheck"),
		s.required(s.metricsServer(), "FailedToStartMetricServer"),
		s.watched(s.statusServer()).Run,
	}
}

// watched makes a server report whether it serves.
func (s *servers) watched(of *serve.Server) *serve.Server {
	of.Down = func(err error) { s.faults.setDown(of.Name, of.Addr, err) }
	return of
}

// required runs a server. If it fails permanently, it sends an event, and the session ends.
func (s *servers) required(of *serve.Server, reason string) func(context.Context) error {
	run := s.watched(of).Run
	return func(ctx context.Context) error {
		err := run(ctx)
		if err != nil {
			ctx, cancel := context.WithTimeout(ctx, lastEvent)
			defer cancel()
			s.input.events.SendAndWait(ctx, watch.Event{Warning: true, Reason: reason, Action: "StartKubeProxy", Note: err.Error()})
		}
		return err
	}
}

func (s *servers) healthServer() *serve.Server {
	return &serve.Server{Name: "healthz server", Addr: s.config.Config.HealthzBindAddress,
		Handler: s.health.Handler(s.metrics), Hosts: s.hosts, HardFail: s.config.Config.BindAddressHardFail, Log: s.log.Logger}
}

func (s *servers) metricsServer() *serve.Server {
	return &serve.Server{Name: "metrics server", Addr: s.config.Config.MetricsBindAddress,
		Handler: s.public(), Hosts: s.hosts, HardFail: s.config.Config.BindAddressHardFail, Log: s.log.Logger}
}

// statusServer serves proxyc status if the metrics server is not reachable. It also serves the
// applied Programs, since only the owner may open its socket.
func (s *servers) statusServer() *serve.Server {
	of := &serve.Server{Name: "status server", Log: s.log.Logger, Handler: s.private()}
	if s.StatusSocket != "" {
		of.Addr = status.UnixPrefix + s.StatusSocket
	}
	return of
}

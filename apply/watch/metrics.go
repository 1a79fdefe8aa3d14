package watch

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"k8s.io/client-go/tools/metrics"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyc/proxyc/apply/serve"
)

// Measure counts the requests of all API clients of the process in m. The client accepts one
// registration per process: a later call has no effect.
func Measure(m *serve.ClientMetrics) {
	metrics.Register(metrics.RegisterOpts{
		RequestLatency:     latency(m.RequestSeconds),
		RateLimiterLatency: latency(m.RateLimiterSeconds),
		RequestSize:        size(m.RequestBytes),
		ResponseSize:       size(m.ResponseBytes),
		RequestResult:      results{m},
		RequestRetry:       results{m},

		TransportCacheEntries:        transports{m},
		TransportCreateCalls:         counts(m.TransportCalls),
		TransportCacheGCCalls:        counts(m.TransportsCollected),
		TransportCertRotationGCCalls: rotations{m},
		TransportCAReloads:           reloads{m},
		ExecPluginCalls:              plugins{m},
		ClientCertRotationAge:        certificates{m},
		ClientCertExpiry:             certificates{m},
	})
}

type latency func(verb, host string) prometheus.Observer

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l(verb, u.Host).Observe(took.Seconds())
}

type size func(verb, host string) prometheus.Observer

func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s(verb, host).Observe(bytes)
}

type results struct{ *serve.ClientMetrics }

func (r results) Increment(_ context.Context, code, method, host string) {
	r.Requests(code, method, host).Inc()
}

func (r results) IncrementRetry(_ context.Context, code, method, host string) {
	r.Retries(code, method, host).Inc()
}

type counts func(result ...string) prometheus.Counter

func (c counts) Increment(result string) { c(result).Inc() }

type transports struct{ *serve.ClientMetrics }

func (t transports) Observe(n int) { t.Transports.Set(float64(n)) }

type rotations struct{ *serve.ClientMetrics }

func (r rotations) Increment() { r.RotationsCollected.Inc() }

type reloads struct{ *serve.ClientMetrics }

func (r reloads) Increment(result, reason string) { r.CAReloads(result, reason).Inc() }

type plugins struct{ *serve.ClientMetrics }

func (p plugins) Increment(code int, status string) { p.PluginCalls(strconv.Itoa(code), status).Inc() }

type certificates struct{ *serve.ClientMetrics }

func (c certificates) Observe(age time.Duration) { c.CertificateAge.Observe(age.Seconds()) }

func (c certificates) Set(expiry *time.Time) { c.CertificateExpiry.Store(expiry) }

package watch

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/metrics"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyc/proxyc/apply/serve"
)

// meter passes the API client's measurements to the current daemon. The client accepts one
// registration per process, but a process may run several daemons in turn.
type meter struct {
	to atomic.Pointer[serve.ClientMetrics]
}

var (
	process  meter
	register sync.Once
)

// Measure counts the requests of all API clients of the process in m, from now on instead of in the
// metrics of an earlier call.
func Measure(m *serve.ClientMetrics) {
	process.to.Store(m)
	register.Do(func() {
		metrics.Register(metrics.RegisterOpts{
			RequestLatency:     latency(func(m *serve.ClientMetrics) observerOf { return m.RequestSeconds }),
			RateLimiterLatency: latency(func(m *serve.ClientMetrics) observerOf { return m.RateLimiterSeconds }),
			RequestSize:        size(func(m *serve.ClientMetrics) observerOf { return m.RequestBytes }),
			ResponseSize:       size(func(m *serve.ClientMetrics) observerOf { return m.ResponseBytes }),
			RequestResult:      results{},
			RequestRetry:       results{},

			TransportCacheEntries:        transports{},
			TransportCreateCalls:         counts(func(m *serve.ClientMetrics) counterOf { return m.TransportCalls }),
			TransportCacheGCCalls:        counts(func(m *serve.ClientMetrics) counterOf { return m.TransportsCollected }),
			TransportCertRotationGCCalls: rotations{},
			TransportCAReloads:           reloads{},
			ExecPluginCalls:              plugins{},
			ClientCertRotationAge:        certificates{},
			ClientCertExpiry:             certificates{},
		})
	})
}

// observerOf returns the histogram of a verb and host.
type observerOf = func(verb, host string) prometheus.Observer

type latency func(*serve.ClientMetrics) observerOf

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l(process.to.Load())(verb, u.Host).Observe(took.Seconds())
}

type size func(*serve.ClientMetrics) observerOf

func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s(process.to.Load())(verb, host).Observe(bytes)
}

type results struct{}

func (results) Increment(_ context.Context, code, method, host string) {
	process.to.Load().Requests(code, method, host).Inc()
}

func (results) IncrementRetry(_ context.Context, code, method, host string) {
	process.to.Load().Retries(code, method, host).Inc()
}

// counterOf returns the counter of a result.
type counterOf = func(result ...string) prometheus.Counter

type counts func(*serve.ClientMetrics) counterOf

func (c counts) Increment(result string) { c(process.to.Load())(result).Inc() }

type transports struct{}

func (transports) Observe(n int) { process.to.Load().Transports.Set(float64(n)) }

type rotations struct{}

func (rotations) Increment() { process.to.Load().RotationsCollected.Inc() }

type reloads struct{}

func (reloads) Increment(result, reason string) {
	process.to.Load().CAReloads(result, reason).Inc()
}

type plugins struct{}

func (plugins) Increment(code int, status string) {
	process.to.Load().PluginCalls(strconv.Itoa(code), status).Inc()
}

type certificates struct{}

func (certificates) Observe(age time.Duration) {
	process.to.Load().CertificateAge.Observe(age.Seconds())
}

func (certificates) Set(expiry *time.Time) { process.to.Load().CertificateExpiry.Store(expiry) }

package serve

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/metrics"
)

// MeasureClient counts the requests of all API clients of the process. client-go accepts one
// registration: a later call has no effect.
func (m *Metrics) MeasureClient() { metrics.Register(m.client) }

// newClientMetrics returns the metrics of the API client, with client-go's labels.
func newClientMetrics(r registrar) metrics.RegisterOpts {
	seconds := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	bytes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	histogram := func(name, help string, buckets []float64) func(...string) prometheus.Observer {
		return r.histogram(allModes, name, help, buckets, "verb", "host")
	}
	certificates := certificates{age: r.histogram(allModes, "rest_client_exec_plugin_certificate_rotation_age",
		"Age of a plugin's client certificate when it was replaced.", certificateBuckets())(), expiry: &atomic.Pointer[time.Time]{}}
	r.add(allModes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rest_client_exec_plugin_ttl_seconds",
		Help: "Time until a plugin's client certificate expires; infinite without one."}, certificates.remaining))
	return metrics.RegisterOpts{
		RequestLatency:     latency(histogram("rest_client_request_duration_seconds", "Duration of a request to the API server.", seconds)),
		RateLimiterLatency: latency(histogram("rest_client_rate_limiter_duration_seconds", "Time that a request waited for clientConnection.qps.", seconds)),
		RequestSize:        size(histogram("rest_client_request_size_bytes", "Size of a request.", bytes)),
		ResponseSize:       size(histogram("rest_client_response_size_bytes", "Size of a response.", bytes)),
		RequestResult:      results(r.counter(allModes, "rest_client_requests_total", "Requests to the API server.", "code", "method", "host")),
		RequestRetry:       results(r.counter(allModes, "rest_client_request_retries_total", "Retried requests.", "code", "verb", "host")),

		TransportCacheEntries: transports{r.gauge(allModes, "rest_client_transport_cache_entries", "Transports to API servers.")()},
		TransportCreateCalls: calls(r.counter(allModes, "rest_client_transport_create_calls_total",
			"Requests for a cached transport: hit, miss, miss-gc, uncacheable.", "result")),
		TransportCacheGCCalls: calls(r.counter(allModes, "rest_client_transport_cache_gc_calls_total",
			"Unused transports: deleted, skipped.", "result")),
		TransportCertRotationGCCalls: rotations{r.counter(allModes, "rest_client_transport_cert_rotation_gc_calls_total",
			"Client certificate rotations stopped because their transport was unused.")()},
		TransportCAReloads: reloads(r.counter(allModes, "rest_client_transport_ca_reload_total", "Reloads of the CA file.", "result", "reason")),

		ExecPluginCalls:       plugins(r.counter(allModes, "rest_client_exec_plugin_call_total", "Calls of a credential plugin.", "code", "call_status")),
		ClientCertRotationAge: certificates,
		ClientCertExpiry:      certificates,
	}
}

// certificateBuckets are from ten minutes, which is too often, to four years.
func certificateBuckets() []float64 {
	const minute, hour, day, year = 60, 3600, 86400, 31104000
	return []float64{10 * minute, 30 * minute, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, year, 4 * year}
}

// The following types implement client-go's interfaces.

type latency func(verbAndHost ...string) prometheus.Observer

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l(verb, u.Host).Observe(took.Seconds())
}

type size func(verbAndHost ...string) prometheus.Observer

func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s(verb, host).Observe(bytes)
}

type results func(codeMethodAndHost ...string) prometheus.Counter

func (r results) Increment(_ context.Context, code, method, host string) {
	r(code, method, host).Inc()
}

func (r results) IncrementRetry(ctx context.Context, code, method, host string) {
	r.Increment(ctx, code, method, host)
}

type transports struct{ prometheus.Gauge }

func (t transports) Observe(n int) { t.Set(float64(n)) }

type calls func(result ...string) prometheus.Counter

func (c calls) Increment(result string) { c(result).Inc() }

type rotations struct{ prometheus.Counter }

func (r rotations) Increment() { r.Inc() }

type reloads func(resultAndReason ...string) prometheus.Counter

func (r reloads) Increment(result, reason string) { r(result, reason).Inc() }

type plugins func(codeAndStatus ...string) prometheus.Counter

func (p plugins) Increment(code int, status string) { p(strconv.Itoa(code), status).Inc() }

// certificates are the client certificates of a credential plugin.
type certificates struct {
	age    prometheus.Observer
	expiry *atomic.Pointer[time.Time]
}

func (c certificates) Observe(age time.Duration) { c.age.Observe(age.Seconds()) }

func (c certificates) Set(expiry *time.Time) { c.expiry.Store(expiry) }

// remaining returns the seconds until the certificate expires.
func (c certificates) remaining() float64 {
	if at := c.expiry.Load(); at != nil {
		return time.Until(*at).Seconds()
	}
	return math.Inf(1)
}

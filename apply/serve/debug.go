package serve

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/proxyc/proxyc/ir"
)

// configName is the key of the configuration in /configz.
const configName = "kubeproxy.config.k8s.io"

// Debug serves the pages of the metrics server.
type Debug struct {
	Name    string // component name in /statusz and /flagz
	Version string
	Mode    ir.Mode
	Metrics *Metrics
	// Config returns the current KubeProxyConfiguration.
	Config func() any
	// Flags returns the flags by name; optional. nil disables /flagz (feature gate ComponentFlagz).
	Flags func() map[string]string
	// Started and Now are for /statusz. A nil Now disables it (feature gate ComponentStatusz).
	Started time.Time
	Now     func() time.Time
	// Profiling enables /debug (enableProfiling): profiles, SetVerbosity and Pages.
	Profiling bool
	// SetVerbosity sets the log level (PUT /debug/flags/v).
	SetVerbosity func(level uint32) error
	// Pages are further handlers below /debug/, by pattern.
	Pages map[string]http.Handler
}

// Handler returns the handler for all pages.
func (d *Debug) Handler() http.Handler {
	mux := http.NewServeMux()
	ping := newPing()
	mux.Handle("/healthz", ping)
	mux.Handle("/healthz/ping", http.HandlerFunc(ping.check))
	mux.Handle("/metrics", d.Metrics.Handler())
	mux.Handle("/metrics/slis", ping.metrics())
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		writeBody(w, http.StatusOK, textPlain, []byte(d.Mode))
	})
	mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{configName: d.Config()})
	})
	if d.Flags != nil {
		mux.HandleFunc("/flagz", d.flagz)
	}
	if d.Now != nil {
		mux.HandleFunc("/statusz", d.statusz)
	}
	if d.Profiling {
		d.profiling(mux)
	}
	return mux
}

func (d *Debug) profiling(mux *http.ServeMux) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", profileTimed(pprof.Index)) // some profiles accept ?seconds=
	mux.HandleFunc("/debug/pprof/profile", profileTimed(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", profileTimed(pprof.Trace))
	mux.HandleFunc("/debug/flags/v", d.verbosity)
	for pattern, page := range d.Pages {
		mux.Handle(pattern, page)
	}
}

// maxVerbosityBody is the maximum body of PUT /debug/flags/v, in bytes.
const maxVerbosityBody = 64

func (d *Debug) verbosity(w http.ResponseWriter, r *http.Request) {
	code, text := http.StatusNotAcceptable, "unsupported http method"
	if r.Method == http.MethodPut {
		code, text = d.setVerbosity(http.MaxBytesReader(w, r.Body, maxVerbosityBody))
	}
	writeBody(w, code, "text/plain", []byte(text+"\n"))
}

func (d *Debug) setVerbosity(body io.Reader) (code int, text string) {
	v, err := io.ReadAll(body)
	if err != nil {
		return http.StatusBadRequest, err.Error()
	}
	level, err := strconv.ParseUint(string(v), 10, 32)
	if err != nil {
		return http.StatusBadRequest, fmt.Sprintf("the verbosity must be a whole number, got %q", v)
	}
	if err := d.SetVerbosity(uint32(level)); err != nil {
		return http.StatusBadRequest, err.Error()
	}
	return http.StatusOK, "successfully set klog.logging.verbosity to " + string(v)
}

// ping is the health check of the metrics server itself. It always succeeds; Health has its own
// server.
type ping struct {
	registry *prometheus.Registry
	last     *prometheus.GaugeVec
	total    *prometheus.CounterVec
}

func newPing() *ping {
	p := &ping{
		registry: prometheus.NewRegistry(),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "Whether a health check succeeds.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "Results of health checks.",
		}, []string{"name", "type", "status"}),
	}
	p.registry.MustRegister(p.last, p.total)
	return p
}

func (p *ping) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.last.WithLabelValues("ping", "healthz").Set(1)
	p.total.WithLabelValues("ping", "healthz", "success").Inc()
	body := "ok"
	if r.URL.Query().Has("verbose") {
		body = "[+]ping ok\nhealthz check passed\n"
	}
	writeBody(w, http.StatusOK, textPlain, []byte(body))
}

// check serves /healthz/ping, which is not counted.
func (p *ping) check(w http.ResponseWriter, _ *http.Request) {
	writeBody(w, http.StatusOK, textPlain, []byte("ok"))
}

// metrics serves /metrics/slis. DELETE resets it.
func (p *ping) metrics() http.Handler {
	read := promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			read.ServeHTTP(w, r)
			return
		}
		p.last.Reset()
		p.total.Reset()
		fmt.Fprintln(w, "metrics reset")
	})
}

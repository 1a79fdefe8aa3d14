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

// configName is the name under which /configz gives the configuration.
const configName = "kubeproxy.config.k8s.io"

// Debug is what the metrics server answers.
type Debug struct {
	Name    string // of the component in /statusz and /flagz
	Version string
	Mode    ir.Mode
	Metrics *Metrics
	// Config returns the KubeProxyConfiguration in force.
	Config func() any
	// Flags returns the flags by name; nil: there is no /flagz (gate ComponentFlagz).
	Flags func() map[string]string
	// Started and Now are for /statusz; a nil Now: there is none (gate ComponentStatusz).
	Started time.Time
	Now     func() time.Time
	// Profiling opens /debug (enableProfiling): profiles, SetVerbosity and Pages.
	Profiling bool
	// SetVerbosity sets how much is logged (PUT /debug/flags/v).
	SetVerbosity func(level uint32) error
	// Pages are more of what stands below /debug/, by pattern.
	Pages map[string]http.Handler
}

// Handler answers all of it.
func (d *Debug) Handler() http.Handler {
	mux := http.NewServeMux()
	ping := newPing()
	mux.Handle("/healthz", ping)
	mux.Handle("/healthz/ping", http.HandlerFunc(ping.check))
	mux.Handle("/metrics", d.Metrics.Handler())
	mux.Handle("/metrics/slis", ping.metrics())
	mux.HandleFunc("/proxyMode", d.proxyMode)
	mux.HandleFunc("/configz", d.configz)
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

func (d *Debug) proxyMode(w http.ResponseWriter, _ *http.Request) {
	writeBody(w, http.StatusOK, textPlain, []byte(d.Mode))
}

func (d *Debug) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{configName: d.Config()})
}

func (d *Debug) profiling(mux *http.ServeMux) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", rendered(pprof.Index)) // some take ?seconds=
	mux.HandleFunc("/debug/pprof/profile", rendered(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", rendered(pprof.Trace))
	mux.HandleFunc("/debug/flags/v", d.verbosity)
	for pattern, page := range d.Pages {
		mux.Handle(pattern, page)
	}
}

// maxVerbosityBody bounds what PUT /debug/flags/v reads.
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

// ping is the health check of the metrics server itself: it answers at all.
// The proxy's health has a server of its own.
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

// check answers /healthz/ping, which is not counted.
func (p *ping) check(w http.ResponseWriter, _ *http.Request) {
	writeBody(w, http.StatusOK, textPlain, []byte("ok"))
}

// metrics answers /metrics/slis, which DELETE sets back.
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

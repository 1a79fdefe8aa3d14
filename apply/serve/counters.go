package serve

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// KernelNumber reads a number from the kernel, such as the packet counter of a rule.
type KernelNumber func() (uint64, error)

// PacketCounters are the kernel's counters in mode iptables: packets dropped in conntrack state
// INVALID, and connections to node ports on localhost.
type PacketCounters struct{ InvalidDropped, LocalhostNodePorts KernelNumber }

// CountPackets exports counters that are read at each scrape. A counter that cannot be read is
// omitted. Only mode iptables exports them.
func (m *Metrics) CountPackets(c PacketCounters) {
	m.registry.add(iptables, kernelNumber{prometheus.NewDesc("kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Packets dropped in conntrack state INVALID.", nil, nil), prometheus.CounterValue, c.InvalidDropped})
	m.registry.add(iptables, kernelNumber{prometheus.NewDesc("kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"Accepted connections to node ports on localhost.", nil, nil), prometheus.CounterValue, c.LocalhostNodePorts})
}

// CountLocalhostRejected exports how many packets to node ports at localhost were rejected. They are
// read at each scrape, and omitted if they cannot be read.
func (m *Metrics) CountLocalhostRejected(read func() ([]apply.Rejected, error)) {
	m.registry.add(nftables, rejected{prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Number of packets rejected on localhost NodePorts. UDP and SCTP are always rejected; TCP is rejected when the localhost NodePort proxy is not running",
		[]string{familyLabel, "protocol"}, nil), read})
}

type rejected struct {
	desc *prometheus.Desc
	read func() ([]apply.Rejected, error)
}

func (c rejected) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c rejected) Collect(ch chan<- prometheus.Metric) {
	all, err := c.read()
	if err != nil {
		return
	}
	for _, r := range all {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(r.Packets), r.Family.String(), strings.ToUpper(r.Protocol.String()))
	}
}

// CountDraining exports the number of draining backends. n is called at each scrape.
func (m *Metrics) CountDraining(n func() int) {
	m.registry.add([]ir.Mode{ir.ModeIPVS}, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "proxyc_draining_backends", Help: "Backends that serve only existing connections.",
	}, func() float64 { return float64(n()) }))
}

// MeasureProxy exports the connections that the process proxies itself. counts is called at each
// scrape.
func (m *Metrics) MeasureProxy(counts func() []apply.Proxied) {
	c := &proxied{counts: counts}
	add := func(name, help string, kind prometheus.ValueType, value func(*apply.Proxied) float64, only ...ir.Protocol) {
		c.series = append(c.series, proxiedSeries{prometheus.NewDesc("proxyc_proxy_"+name, help, []string{familyLabel, "protocol"}, nil), kind, value, only})
	}
	add("listeners", "Open listeners that have a backend.", prometheus.GaugeValue,
		func(p *apply.Proxied) float64 { return float64(p.Listeners) })
	add("clients", "Current TCP connections and UDP clients of the process.", prometheus.GaugeValue,
		func(p *apply.Proxied) float64 { return float64(p.Clients) })
	add("clients_total", "Accepted TCP connections and UDP clients.", prometheus.CounterValue,
		func(p *apply.Proxied) float64 { return float64(p.Accepted) })
	add("dial_failures_total", "Failed attempts to connect to a backend.", prometheus.CounterValue,
		func(p *apply.Proxied) float64 { return float64(p.DialFailures) })
	add("unreachable_total", "TCP connections closed because no backend responded.", prometheus.CounterValue,
		func(p *apply.Proxied) float64 { return float64(p.Unreachable) }, ir.TCP)
	add("waited_total", "TCP connections that waited because there were too many.", prometheus.CounterValue,
		func(p *apply.Proxied) float64 { return float64(p.Waited) }, ir.TCP)
	add("dropped_datagrams_total", "UDP datagrams dropped because of no backend or too many clients.", prometheus.CounterValue,
		func(p *apply.Proxied) float64 { return float64(p.Dropped) }, ir.UDP)
	m.registry.add(proxying, c)
}

type proxied struct {
	counts func() []apply.Proxied
	series []proxiedSeries
}

type proxiedSeries struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*apply.Proxied) float64
	only  []ir.Protocol // empty for all protocols
}

func (c *proxied) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range c.series {
		ch <- s.desc
	}
}

func (c *proxied) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.counts() {
		for _, s := range c.series {
			if len(s.only) == 0 || slices.Contains(s.only, p.Protocol) {
				ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(&p), p.Family.String(), p.Protocol.String())
			}
		}
	}
}

// MeasureConntrack exports the size and limit of the conntrack table. They are read at each scrape,
// and omitted if they cannot be read.
func (m *Metrics) MeasureConntrack(entries, limit KernelNumber) {
	for _, g := range []struct {
		name, help string
		read       KernelNumber
	}{
		{"proxyc_conntrack_entries", "Entries in the node's conntrack table.", entries},
		{"proxyc_conntrack_entries_limit", "Maximum entries of the node's conntrack table.", limit},
	} {
		m.registry.add(linux, kernelNumber{prometheus.NewDesc(g.name, g.help, nil, nil), prometheus.GaugeValue, g.read})
	}
}

// MeasureStore exports the memory of the stored Services, EndpointSlices and Nodes, in bytes. bytes
// is called at each scrape.
func (m *Metrics) MeasureStore(bytes func() int) {
	m.registry.add(allModes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "proxyc_store_bytes", Help: "Memory of stored Services, EndpointSlices and Nodes, in bytes.",
	}, func() float64 { return float64(bytes()) }))
}

// Problems are problems other than those of rules, for alerts.
type Problems struct {
	Invalid   int  // files whose newest version is invalid
	NotServed int  // servers and healthCheckNodePorts that do not listen
	BootFile  bool // the boot file does not contain the current rules
	KubeProxy bool // kube-proxy's rules exist
	MayDrop   int  // rules of other programs
	MayDivert int
}

// MeasureProblems exports these problems. now is called at each scrape.
func (m *Metrics) MeasureProblems(now func() Problems) {
	one := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	for _, g := range []struct {
		name, help string
		of         func(Problems) int
	}{
		{"proxyc_invalid_files", "Configurations and snapshots whose newest version is invalid.", func(t Problems) int { return t.Invalid }},
		{"proxyc_not_served", "Servers and healthCheckNodePorts that do not serve.", func(t Problems) int { return t.NotServed }},
		{"proxyc_boot_file_failed", "Whether the boot file could not be written.", func(t Problems) int { return one(t.BootFile) }},
		{"proxyc_kube_proxy_beside", "Whether the node has rules of kube-proxy.", func(t Problems) int { return one(t.KubeProxy) }},
		{"proxyc_foreign_rules_may_drop", "Foreign rules that may drop packets to Services, at the last check.", func(t Problems) int { return t.MayDrop }},
		{"proxyc_foreign_rules_may_divert", "Foreign rules that may divert packets from the rules of Services, at the last check.", func(t Problems) int { return t.MayDivert }},
	} {
		m.registry.add(allModes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help},
			func() float64 { return float64(g.of(now())) }))
	}
}

// MeasureFindings exports the number of findings of a severity about objects. count is called at
// each scrape.
func (m *Metrics) MeasureFindings(severity string, count func() int) {
	m.registry.add(allModes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "proxyc_findings", Help: "Findings about objects, as in proxyc status. An error means that part of an object is ignored.",
		ConstLabels: prometheus.Labels{"severity": severity},
	}, func() float64 { return float64(count()) }))
}

// Contact is when the API server last sent an event, a bookmark or the initial list of a
// resource.
type Contact struct {
	Resource string    // "services"
	At       time.Time // zero if it has not yet
	Lost     bool      // contact is lost
}

// MeasureContact exports the contact with the API server. heard is called at each scrape.
func (m *Metrics) MeasureContact(heard func() []Contact) {
	m.registry.add(allModes, contact{
		last: prometheus.NewDesc("proxyc_api_last_event_timestamp_seconds",
			"Time of the last event or bookmark of a resource; 0 if there was none.", []string{"resource"}, nil),
		up: prometheus.NewDesc("proxyc_api_contact",
			"Whether the API server responds.", []string{"resource"}, nil),
		heard: heard,
	})
}

type contact struct {
	last, up *prometheus.Desc
	heard    func() []Contact
}

func (c contact) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.last
	ch <- c.up
}

func (c contact) Collect(ch chan<- prometheus.Metric) {
	for _, h := range c.heard() {
		last, up := 0.0, 1.0
		if !h.At.IsZero() {
			last = float64(h.At.UnixNano()) / 1e9
		}
		if h.Lost {
			up = 0
		}
		ch <- prometheus.MustNewConstMetric(c.last, prometheus.GaugeValue, last, h.Resource)
		ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up, h.Resource)
	}
}

type kernelNumber struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read KernelNumber
}

func (c kernelNumber) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c kernelNumber) Collect(ch chan<- prometheus.Metric) {
	if n, err := c.read(); err == nil { // otherwise skip it, and keep the rest of the scrape
		ch <- prometheus.MustNewConstMetric(c.desc, c.kind, float64(n))
	}
}

// ClientMetrics are the metrics of the API client, with client-go's labels: verb, host; and code,
// method, host.
type ClientMetrics struct {
	RequestSeconds     func(verb, host string) prometheus.Observer
	RateLimiterSeconds func(verb, host string) prometheus.Observer
	RequestBytes       func(verb, host string) prometheus.Observer
	ResponseBytes      func(verb, host string) prometheus.Observer
	Requests           func(code, method, host string) prometheus.Counter
	Retries            func(code, verb, host string) prometheus.Counter

	// Transports is the number of cached transports to API servers, each with its own certificates.
	Transports          prometheus.Gauge
	TransportCalls      func(result ...string) prometheus.Counter
	TransportsCollected func(result ...string) prometheus.Counter
	RotationsCollected  prometheus.Counter // client certificate rotations that stopped, since their transport is no longer used
	CAReloads           func(resultAndReason ...string) prometheus.Counter

	// Plugins are the exec credential plugins of a kubeconfig.
	PluginCalls       func(codeAndStatus ...string) prometheus.Counter
	CertificateAge    prometheus.Observer // age of a plugin's certificate when it is replaced
	CertificateExpiry *atomic.Pointer[time.Time]
}

func newClientMetrics(r registrar) ClientMetrics {
	seconds := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	bytes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	histogram := func(name, help string, buckets []float64) func(verb, host string) prometheus.Observer {
		with := r.histogram(allModes, name, help, buckets, "verb", "host")
		return func(verb, host string) prometheus.Observer { return with(verb, host) }
	}
	counter := func(name, help, method string) func(code, method, host string) prometheus.Counter {
		with := r.counter(allModes, name, help, "code", method, "host")
		return func(code, method, host string) prometheus.Counter { return with(code, method, host) }
	}
	m := ClientMetrics{
		RequestSeconds:     histogram("rest_client_request_duration_seconds", "Duration of a request to the API server.", seconds),
		RateLimiterSeconds: histogram("rest_client_rate_limiter_duration_seconds", "Time that a request waited for clientConnection.qps.", seconds),
		RequestBytes:       histogram("rest_client_request_size_bytes", "Size of a request.", bytes),
		ResponseBytes:      histogram("rest_client_response_size_bytes", "Size of a response.", bytes),
		Requests:           counter("rest_client_requests_total", "Requests to the API server.", "method"),
		Retries:            counter("rest_client_request_retries_total", "Retried requests.", "verb"),

		Transports: r.gauge(allModes, "rest_client_transport_cache_entries", "Transports to API servers.")(),
		TransportCalls: r.counter(allModes, "rest_client_transport_create_calls_total",
			"Requests for a cached transport: hit, miss, miss-gc, uncacheable.", "result"),
		TransportsCollected: r.counter(allModes, "rest_client_transport_cache_gc_calls_total",
			"Unused transports: deleted, skipped.", "result"),
		RotationsCollected: r.counter(allModes, "rest_client_transport_cert_rotation_gc_calls_total",
			"Client certificate rotations stopped because their transport was unused.")(),
		CAReloads: r.counter(allModes, "rest_client_transport_ca_reload_total", "Reloads of the CA file.", "result", "reason"),

		PluginCalls: r.counter(allModes, "rest_client_exec_plugin_call_total", "Calls of a credential plugin.", "code", "call_status"),
		CertificateAge: r.histogram(allModes, "rest_client_exec_plugin_certificate_rotation_age",
			"Age of a plugin's client certificate when it was replaced.", certificateBuckets())(),
		CertificateExpiry: &atomic.Pointer[time.Time]{},
	}
	r.add(allModes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rest_client_exec_plugin_ttl_seconds",
		Help: "Time until a plugin's client certificate expires; infinite without one."},
		func() float64 {
			if at := m.CertificateExpiry.Load(); at != nil {
				return time.Until(*at).Seconds()
			}
			return math.Inf(1)
		}))
	return m
}

// certificateBuckets are from ten minutes, which is too often, to four years.
func certificateBuckets() []float64 {
	const minute, hour, day, year = 60, 3600, 86400, 31104000
	return []float64{10 * minute, 30 * minute, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, year, 4 * year}
}

package serve

import (
	"slices"
	"strings"
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
	m.measureNumber(iptables, "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Packets dropped in conntrack state INVALID.", prometheus.CounterValue, c.InvalidDropped)
	m.measureNumber(iptables, "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"Accepted connections to node ports on localhost.", prometheus.CounterValue, c.LocalhostNodePorts)
}

// CountLocalhostRejected exports how many packets to node ports at localhost were rejected. They are
// read at each scrape, and omitted if they cannot be read.
func (m *Metrics) CountLocalhostRejected(read func() ([]apply.Rejected, error)) {
	m.scrape(nftables, prometheus.CounterValue, "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Number of packets rejected on localhost NodePorts. UDP and SCTP are always rejected; TCP is rejected when the localhost NodePort proxy is not running",
		[]string{familyLabel, "protocol"}, func(export sample) {
			all, _ := read() // none after an error
			for _, r := range all {
				export(float64(r.Packets), r.Family.String(), strings.ToUpper(r.Protocol.String()))
			}
		})
}

// CountDraining exports the number of draining backends. n is called at each scrape.
func (m *Metrics) CountDraining(n func() int) {
	m.measure([]ir.Mode{ir.ModeIPVS}, "proxyc_draining_backends", "Backends that serve only existing connections.", nil, n)
}

// MeasureProxy exports the connections that the process proxies itself. counts is called at each
// scrape.
func (m *Metrics) MeasureProxy(counts func() []apply.Proxied) {
	add := func(name, help string, kind prometheus.ValueType, value func(*apply.Proxied) uint64, only ...ir.Protocol) {
		m.scrape(proxying, kind, "proxyc_proxy_"+name, help, []string{familyLabel, "protocol"}, func(export sample) {
			for _, p := range counts() {
				if len(only) == 0 || slices.Contains(only, p.Protocol) {
					export(float64(value(&p)), p.Family.String(), p.Protocol.String())
				}
			}
		})
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add("listeners", "Open listeners that have a backend.", gauge, func(p *apply.Proxied) uint64 { return uint64(p.Listeners) })
	add("clients", "Current TCP connections and UDP clients of the process.", gauge, func(p *apply.Proxied) uint64 { return uint64(p.Clients) })
	add("clients_total", "Accepted TCP connections and UDP clients.", counter, func(p *apply.Proxied) uint64 { return p.Accepted })
	add("dial_failures_total", "Failed attempts to connect to a backend.", counter, func(p *apply.Proxied) uint64 { return p.DialFailures })
	add("unreachable_total", "TCP connections closed because no backend responded.", counter,
		func(p *apply.Proxied) uint64 { return p.Unreachable }, ir.TCP)
	add("waited_total", "TCP connections that waited because there were too many.", counter,
		func(p *apply.Proxied) uint64 { return p.Waited }, ir.TCP)
	add("dropped_datagrams_total", "UDP datagrams dropped because of no backend or too many clients.", counter,
		func(p *apply.Proxied) uint64 { return p.Dropped }, ir.UDP)
}

// MeasureConntrack exports the size and limit of the conntrack table. They are read at each scrape,
// and omitted if they cannot be read.
func (m *Metrics) MeasureConntrack(entries, limit KernelNumber) {
	m.measureNumber(linux, "proxyc_conntrack_entries", "Entries in the node's conntrack table.", prometheus.GaugeValue, entries)
	m.measureNumber(linux, "proxyc_conntrack_entries_limit", "Maximum entries of the node's conntrack table.", prometheus.GaugeValue, limit)
}

// MeasureStore exports the memory of the stored Services, EndpointSlices and Nodes, in bytes. bytes
// is called at each scrape.
func (m *Metrics) MeasureStore(bytes func() int) {
	m.measure(allModes, "proxyc_store_bytes", "Memory of stored Services, EndpointSlices and Nodes, in bytes.", nil, bytes)
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
	add := func(name, help string, of func(Problems) int) {
		m.measure(allModes, name, help, nil, func() int { return of(now()) })
	}
	add("proxyc_invalid_files", "Configurations and snapshots whose newest version is invalid.", func(t Problems) int { return t.Invalid })
	add("proxyc_not_served", "Servers and healthCheckNodePorts that do not serve.", func(t Problems) int { return t.NotServed })
	add("proxyc_boot_file_failed", "Whether the boot file could not be written.", func(t Problems) int { return ir.Int(t.BootFile) })
	add("proxyc_kube_proxy_beside", "Whether the node has rules of kube-proxy.", func(t Problems) int { return ir.Int(t.KubeProxy) })
	add("proxyc_foreign_rules_may_drop", "Foreign rules that may drop packets to Services, at the last check.", func(t Problems) int { return t.MayDrop })
	add("proxyc_foreign_rules_may_divert", "Foreign rules that may divert packets from the rules of Services, at the last check.", func(t Problems) int { return t.MayDivert })
}

// MeasureFindings exports the number of findings of a severity about objects. count is called at
// each scrape.
func (m *Metrics) MeasureFindings(severity string, count func() int) {
	m.measure(allModes, "proxyc_findings", "Findings about objects, as in proxyc status. An error means that part of an object is ignored.",
		prometheus.Labels{"severity": severity}, count)
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
	add := func(name, help string, value func(Contact) float64) {
		m.scrape(allModes, prometheus.GaugeValue, name, help, []string{"resource"}, func(export sample) {
			for _, h := range heard() {
				export(value(h), h.Resource)
			}
		})
	}
	add("proxyc_api_last_event_timestamp_seconds", "Time of the last event or bookmark of a resource; 0 if there was none.", func(h Contact) float64 {
		if h.At.IsZero() {
			return 0
		}
		return float64(h.At.UnixNano()) / 1e9
	})
	add("proxyc_api_contact", "Whether the API server responds.", func(h Contact) float64 { return float64(ir.Int(!h.Lost)) })
}

// measureNumber exports a number that is read at each scrape, and omitted if it cannot be read.
func (m *Metrics) measureNumber(modes []ir.Mode, name, help string, kind prometheus.ValueType, read KernelNumber) {
	m.scrape(modes, kind, name, help, nil, func(export sample) {
		if n, err := read(); err == nil {
			export(float64(n))
		}
	})
}

// measure exports a gauge that is read at each scrape.
func (m *Metrics) measure(modes []ir.Mode, name, help string, labels prometheus.Labels, read func() int) {
	m.registry.add(modes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(read()) }))
}

// sample exports a value, with the values of its metric's labels.
type sample func(value float64, labels ...string)

// scrape exports a metric whose values read passes to export at each scrape.
func (m *Metrics) scrape(modes []ir.Mode, kind prometheus.ValueType, name, help string, labels []string, read func(export sample)) {
	desc := prometheus.NewDesc(name, help, labels, nil)
	m.registry.add(modes, scraped{[]*prometheus.Desc{desc}, func(ch chan<- prometheus.Metric) {
		read(func(value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
		})
	}})
}

// scraped is a collector whose metrics are read at each scrape.
type scraped struct {
	descs []*prometheus.Desc
	read  func(chan<- prometheus.Metric)
}

func (s scraped) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		ch <- d
	}
}

func (s scraped) Collect(ch chan<- prometheus.Metric) { s.read(ch) }

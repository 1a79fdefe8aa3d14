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
	desc := prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Number of packets rejected on localhost NodePorts. UDP and SCTP are always rejected; TCP is rejected when the localhost NodePort proxy is not running",
		[]string{familyLabel, "protocol"}, nil)
	m.registry.add(nftables, scraped{[]*prometheus.Desc{desc}, func(ch chan<- prometheus.Metric) {
		all, _ := read() // none after an error
		for _, r := range all {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(r.Packets), r.Family.String(), strings.ToUpper(r.Protocol.String()))
		}
	}})
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
	type series struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value func(*apply.Proxied) float64
		only  []ir.Protocol // empty for all protocols
	}
	var all []series
	var descs []*prometheus.Desc
	add := func(name, help string, kind prometheus.ValueType, value func(*apply.Proxied) float64, only ...ir.Protocol) {
		desc := prometheus.NewDesc("proxyc_proxy_"+name, help, []string{familyLabel, "protocol"}, nil)
		all, descs = append(all, series{desc, kind, value, only}), append(descs, desc)
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
	m.registry.add(proxying, scraped{descs, func(ch chan<- prometheus.Metric) {
		for _, p := range counts() {
			for _, s := range all {
				if len(s.only) == 0 || slices.Contains(s.only, p.Protocol) {
					ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(&p), p.Family.String(), p.Protocol.String())
				}
			}
		}
	}})
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
	for _, g := range []struct {
		name, help string
		of         func(Problems) float64
	}{
		{"proxyc_invalid_files", "Configurations and snapshots whose newest version is invalid.", func(t Problems) float64 { return float64(t.Invalid) }},
		{"proxyc_not_served", "Servers and healthCheckNodePorts that do not serve.", func(t Problems) float64 { return float64(t.NotServed) }},
		{"proxyc_boot_file_failed", "Whether the boot file could not be written.", func(t Problems) float64 { return float64(ir.Int(t.BootFile)) }},
		{"proxyc_kube_proxy_beside", "Whether the node has rules of kube-proxy.", func(t Problems) float64 { return float64(ir.Int(t.KubeProxy)) }},
		{"proxyc_foreign_rules_may_drop", "Foreign rules that may drop packets to Services, at the last check.", func(t Problems) float64 { return float64(t.MayDrop) }},
		{"proxyc_foreign_rules_may_divert", "Foreign rules that may divert packets from the rules of Services, at the last check.", func(t Problems) float64 { return float64(t.MayDivert) }},
	} {
		m.registry.add(allModes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help},
			func() float64 { return g.of(now()) }))
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
	last := prometheus.NewDesc("proxyc_api_last_event_timestamp_seconds",
		"Time of the last event or bookmark of a resource; 0 if there was none.", []string{"resource"}, nil)
	up := prometheus.NewDesc("proxyc_api_contact", "Whether the API server responds.", []string{"resource"}, nil)
	m.registry.add(allModes, scraped{[]*prometheus.Desc{last, up}, func(ch chan<- prometheus.Metric) {
		for _, h := range heard() {
			at := 0.0
			if !h.At.IsZero() {
				at = float64(h.At.UnixNano()) / 1e9
			}
			ch <- prometheus.MustNewConstMetric(last, prometheus.GaugeValue, at, h.Resource)
			ch <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, float64(ir.Int(!h.Lost)), h.Resource)
		}
	}})
}

// measureNumber exports a number that is read at each scrape, and omitted if it cannot be read.
func (m *Metrics) measureNumber(modes []ir.Mode, name, help string, kind prometheus.ValueType, read KernelNumber) {
	desc := prometheus.NewDesc(name, help, nil, nil)
	m.registry.add(modes, scraped{[]*prometheus.Desc{desc}, func(ch chan<- prometheus.Metric) {
		if n, err := read(); err == nil {
			ch <- prometheus.MustNewConstMetric(desc, kind, float64(n))
		}
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

package serve

import (
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/tools/metrics"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/ir"
)

// Metrics are all metrics of the daemon. Each mode exports those of the same kube-proxy mode, with
// the same names, labels and buckets. Metrics that a mode does not export can be set without
// effect. A series exists from its first use.
type Metrics struct {
	registry registrar

	// Syncs of the rules. A full sync compares everything; a partial one applies only changes.
	SyncSeconds        PerFamily[prometheus.Observer]
	SyncFullSeconds    PerFamily[prometheus.Observer] // iptables, nftables
	SyncPartialSeconds PerFamily[prometheus.Observer] // iptables, nftables
	LastSync           PerFamily[prometheus.Gauge]    // Unix time of the last success, in seconds
	LastQueued         PerFamily[prometheus.Gauge]    // Unix time of the last request, in seconds
	// ProgrammingSeconds is observed once for each EndpointSlice whose change was applied, starting at
	// its trigger time (SNAP-47, annotation endpoints.kubernetes.io/last-change-trigger-time).
	ProgrammingSeconds PerFamily[prometheus.Observer]

	EndpointChangesPending prometheus.Gauge
	EndpointChanges        prometheus.Counter
	ServiceChangesPending  prometheus.Gauge
	ServiceChanges         prometheus.Counter
	// NoLocalEndpoints is the number of service ports (in mode ipvs, of Services) with traffic policy
	// Local and without an endpoint on this node.
	NoLocalEndpoints func(policyAndFamily ...string) prometheus.Gauge // iptables, ipvs, nftables

	RulesTotal             func(tableAndFamily ...string) prometheus.Gauge // iptables
	RulesLastSync          func(tableAndFamily ...string) prometheus.Gauge // iptables
	RestoreFailures        PerFamily[prometheus.Counter]                   // iptables, ipvs
	PartialRestoreFailures PerFamily[prometheus.Counter]                   // iptables
	NFTSyncFailures        PerFamily[prometheus.Counter]                   // nftables
	NFTCleanupFailures     PerFamily[prometheus.Counter]                   // nftables
	// LocalhostListeners is the number of listeners for node ports on localhost. LocalhostFailures
	// counts each failed attempt to open one.
	LocalhostListeners PerFamily[prometheus.Gauge]   // nftables
	LocalhostFailures  PerFamily[prometheus.Counter] // nftables

	// BalancerFailures count failed calls to HNS about load balancers.
	BalancerFailures map[apply.Verb]func(familyTypeAndCause ...string) prometheus.Counter // kernelspace

	ConntrackSeconds PerFamily[prometheus.Observer] // iptables, ipvs, nftables
	ConntrackDeleted PerFamily[prometheus.Counter]  // iptables, ipvs, nftables

	Healthz func(code ...string) prometheus.Counter // responses of /healthz
	Livez   func(code ...string) prometheus.Counter // responses of /livez

	client metrics.RegisterOpts // of MeasureClient
	// Feature reports whether a feature gate is enabled, by its stage: ALPHA, BETA, or "".
	Feature func(nameAndStage ...string) prometheus.Gauge

	// proxyc's own metrics.
	Operations   func(verb ...string) prometheus.Counter // completed operations
	DriftRepairs prometheus.Counter                      // operations that reverted a change of another program
	Refused      prometheus.Gauge                        // Services, and objects whose removal is refused
	EventSeconds prometheus.Observer                     // from the arrival of an event until it is applied
	// ChangeSeconds is observed once for each change of a Service or EndpointSlice when its rules are
	// committed. Deletions are included, the initial sync is not.
	ChangeSeconds func(since ...string) prometheus.Observer
	// Failures of cleanups after a sync, which are retried.
	ConntrackFailures PerFamily[prometheus.Counter] // iptables, ipvs, nftables
	LeftoverFailures  prometheus.Counter
}

// PerFamily are the metrics of each family.
type PerFamily[M any] func(labels ...string) M

// Of returns the metric of a family.
func (p PerFamily[M]) Of(f ir.Family) M { return p(f.String()) }

// Values of label "since" of ChangeSeconds. SinceArrival starts when the daemon receives a change.
// SinceTrigger starts at the trigger time in the EndpointSlice's annotation, which is often in whole
// seconds and from another machine's clock.
const (
	SinceArrival = "arrival"
	SinceTrigger = "trigger"
)

// Sets of modes that export a metric.
var (
	allModes     = ir.Modes()
	linux        = []ir.Mode{ir.ModeIPTables, ir.ModeIPVS, ir.ModeNFTables}
	partialSyncs = []ir.Mode{ir.ModeIPTables, ir.ModeNFTables} // with full and partial syncs
	restoring    = []ir.Mode{ir.ModeIPTables, ir.ModeIPVS}
	iptables     = []ir.Mode{ir.ModeIPTables}
	kernelspace  = []ir.Mode{ir.ModeKernelspace}
	nftables     = []ir.Mode{ir.ModeNFTables}
	proxying     = []ir.Mode{ir.ModeUserspace, ir.ModeNFTables} // in nftables, for traffic to localhost
)

// NewMetrics returns the metrics of a mode and of the process. version is proxyc's version. native
// adds native buckets to histograms (feature gate NativeHistograms).
func NewMetrics(mode ir.Mode, version string, native bool) *Metrics {
	r := registrar{prometheus.NewRegistry(), mode, native}
	r.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)),
	)
	m := &Metrics{
		registry: r,

		SyncSeconds: r.histogram(allModes, "kubeproxy_sync_proxy_rules_duration_seconds",
			"Duration of a sync of the rules.", syncBuckets(), familyLabel),
		SyncFullSeconds: r.histogram(partialSyncs, "kubeproxy_sync_full_proxy_rules_duration_seconds",
			"Duration of a sync of all rules.", syncBuckets(), familyLabel),
		SyncPartialSeconds: r.histogram(partialSyncs, "kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Duration of a sync of the rules that changed.", syncBuckets(), familyLabel),
		LastSync: r.gauge(allModes, "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			"Time of the last successful sync of the rules.", familyLabel),
		LastQueued: r.gauge(allModes, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
			"Time of the last request for a sync of the rules.", familyLabel),
		ProgrammingSeconds: r.histogram(allModes, "kubeproxy_network_programming_duration_seconds",
			"Time from a change of a Service or pod until its rules were applied.", programmingBuckets(), familyLabel),

		EndpointChangesPending: r.gauge(allModes, "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
			"Changes of endpoints that are not applied yet.")(),
		EndpointChanges: r.counter(allModes, "kubeproxy_sync_proxy_rules_endpoint_changes_total",
			"Received changes of endpoints.")(),
		ServiceChangesPending: r.gauge(allModes, "kubeproxy_sync_proxy_rules_service_changes_pending",
			"Changes of Services that are not applied yet.")(),
		ServiceChanges: r.counter(allModes, "kubeproxy_sync_proxy_rules_service_changes_total",
			"Received changes of Services.")(),
		NoLocalEndpoints: r.gauge(linux, "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			"Services with traffic policy Local and without endpoints on this node.", "traffic_policy", familyLabel),

		RulesTotal: r.gauge(iptables, "kubeproxy_sync_proxy_rules_iptables_total",
			"Applied iptables rules.", "table", familyLabel),
		RulesLastSync: r.gauge(iptables, "kubeproxy_sync_proxy_rules_iptables_last",
			"iptables rules written by the last sync.", "table", familyLabel),
		RestoreFailures: r.counter(restoring, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
			"Failures of iptables-restore.", familyLabel),
		PartialRestoreFailures: r.counter(iptables, "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
			"Failures of iptables-restore in partial syncs.", familyLabel),
		NFTSyncFailures: r.counter(nftables, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			"Failed nftables transactions.", familyLabel),
		NFTCleanupFailures: r.counter(nftables, "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
			"nftables transactions that could not remove all stale chains.", familyLabel),
		LocalhostListeners: r.gauge(nftables, "kubeproxy_nftables_localhost_nodeport_listeners",
			"Listeners for node ports on localhost.", familyLabel),
		LocalhostFailures: r.counter(nftables, "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
			"Failures to open a listener for a node port on localhost.", familyLabel),

		BalancerFailures: map[apply.Verb]func(...string) prometheus.Counter{
			apply.Add: r.counter(kernelspace, "kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total",
				"Cumulative proxy winkernel lb create failures", familyLabel, "lb_type", "error"),
			apply.Change: r.counter(kernelspace, "kubeproxy_sync_proxy_rules_winkernel_lb_update_failures_total",
				"Cumulative proxy winkernel lb update failures", familyLabel, "lb_type", "error"),
			apply.Remove: r.counter(kernelspace, "kubeproxy_sync_proxy_rules_winkernel_lb_delete_failures_total",
				"Cumulative proxy winkernel lb delete failures", familyLabel, "lb_type", "error"),
		},

		ConntrackSeconds: r.histogram(linux, "kubeproxy_conntrack_reconciler_sync_duration_seconds",
			"Duration of a search for stale conntrack entries.", syncBuckets(), familyLabel),
		ConntrackDeleted: r.counter(linux, "kubeproxy_conntrack_reconciler_deleted_entries_total",
			"Deleted stale conntrack entries.", familyLabel),

		Healthz: r.counter(allModes, "kubeproxy_proxy_healthz_total", "Responses of /healthz.", "code"),
		Livez:   r.counter(allModes, "kubeproxy_proxy_livez_total", "Responses of /livez.", "code"),

		client:  newClientMetrics(r),
		Feature: r.gauge(allModes, "kubernetes_feature_enabled", "Whether a feature gate is enabled.", "name", "stage"),

		Operations: r.counter(allModes, "proxyc_operations_total",
			"Completed operations on rules, chains and elements.", "verb"),
		DriftRepairs: r.counter(allModes, "proxyc_drift_repaired_total",
			"Operations that reverted foreign changes.")(),
		Refused: r.gauge(allModes, "proxyc_refused_services",
			"Refused Services, and refused removals of load balancers.")(),
		EventSeconds: r.histogram(allModes, "proxyc_event_to_kernel_seconds",
			"Time from the arrival of an event until its rules were applied.", syncBuckets())(),
		ChangeSeconds: r.histogram(allModes, "proxyc_change_to_packet_seconds",
			"Time from a change of a Service or its endpoints until its rules were applied, including deletions, excluding starts.", syncBuckets(), "since"),
		ConntrackFailures: r.counter(linux, "proxyc_conntrack_failures_total",
			"Failed searches for stale conntrack entries.", familyLabel),
		LeftoverFailures: r.counter(allModes, "proxyc_leftover_failures_total",
			"Failures to remove leftovers of other proxies.")(),
	}
	b := build.Read()
	major, minor := build.MajorMinor(version)
	r.gauge(allModes, "kubernetes_build_info", "Always 1, labelled with the build information.",
		"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform")(
		major, minor, version, b.Commit, b.TreeState(), b.Date, b.Go, b.Compiler, b.Platform).Set(1)
	r.gauge(allModes, "proxyc_build_info", "Always 1.", "version", "mode")(version, string(mode)).Set(1)
	return m
}

const familyLabel = "ip_family"

// syncBuckets are from 1 ms to 16 s.
func syncBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets are finest around the service level objective of clusters.
func programmingBuckets() []float64 {
	return slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
}

// registrar registers the metrics that a mode exports.
type registrar struct {
	*prometheus.Registry
	mode   ir.Mode
	native bool
}

func (r registrar) add(modes []ir.Mode, c prometheus.Collector) {
	if slices.Contains(modes, r.mode) {
		r.MustRegister(c)
	}
}

func (r registrar) counter(modes []ir.Mode, name, help string, labels ...string) func(...string) prometheus.Counter {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.add(modes, v)
	return v.WithLabelValues
}

func (r registrar) gauge(modes []ir.Mode, name, help string, labels ...string) func(...string) prometheus.Gauge {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.add(modes, v)
	return v.WithLabelValues
}

func (r registrar) histogram(modes []ir.Mode, name, help string, buckets []float64, labels ...string) func(...string) prometheus.Observer {
	opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	if r.native {
		opts.NativeHistogramBucketFactor, opts.NativeHistogramMaxBucketNumber = 1.1, 160 // as component-base
	}
	v := prometheus.NewHistogramVec(opts, labels)
	r.add(modes, v)
	return v.WithLabelValues
}

// Handler serves /metrics. It rejects no request, and gathers for one at a time. Clients that do not read
// their responses block no others.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(oneByOne(m.registry.Gather)), promhttp.HandlerOpts{})
}

// oneByOne returns a function that calls f, and never concurrently.
func oneByOne[T any](f func() (T, error)) func() (T, error) {
	var mu sync.Mutex
	return func() (T, error) {
		mu.Lock()
		defer mu.Unlock()
		return f()
	}
}

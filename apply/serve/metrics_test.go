package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// touch uses every metric.
func touch(m *Metrics) {
	f := ir.IPv6
	for _, o := range []prometheus.Observer{
		m.SyncSeconds.Of(f), m.SyncFullSeconds.Of(f), m.SyncPartialSeconds.Of(f), m.ProgrammingSeconds.Of(f), m.ConntrackSeconds.Of(f), m.EventSeconds, m.ChangeSeconds(SinceArrival),
	} {
		o.Observe(1)
	}
	for _, g := range []prometheus.Gauge{
		m.LastSync.Of(f), m.LastQueued.Of(f), m.EndpointChangesPending, m.ServiceChangesPending, m.NoLocalEndpoints("internal", f.String()),
		m.LocalhostListeners.Of(f), m.RulesTotal("nat", f.String()), m.RulesLastSync("filter", f.String()), m.Refused, m.Feature("ContextualLogging", "BETA"),
	} {
		g.Set(1)
	}
	for _, c := range []prometheus.Counter{
		m.EndpointChanges, m.ServiceChanges, m.RestoreFailures.Of(f), m.PartialRestoreFailures.Of(f), m.NFTSyncFailures.Of(f), m.NFTCleanupFailures.Of(f),
		m.LocalhostFailures.Of(f), m.BalancerFailures[apply.Change](f.String(), "nodeport", "other"), m.ConntrackDeleted.Of(f), m.ConntrackFailures.Of(f), m.LeftoverFailures, m.Healthz("200"), m.Livez("503"), m.Operations(apply.Change.String()), m.DriftRepairs,
	} {
		c.Inc()
	}
	client, at := m.client, url.URL{Host: "h:1"}
	client.RequestLatency.Observe(context.Background(), "GET", at, time.Second)
	client.RateLimiterLatency.Observe(context.Background(), "GET", at, time.Second)
	client.RequestSize.Observe(context.Background(), "GET", "h:1", 1)
	client.ResponseSize.Observe(context.Background(), "GET", "h:1", 1)
	client.RequestResult.Increment(context.Background(), "200", "GET", "h:1")
	client.RequestRetry.IncrementRetry(context.Background(), "500", "GET", "h:1")
	client.TransportCacheEntries.Observe(1)
	client.TransportCreateCalls.Increment("miss")
	client.TransportCacheGCCalls.Increment("deleted")
	client.TransportCertRotationGCCalls.Increment()
	client.TransportCAReloads.Increment("success", "updated")
	client.ExecPluginCalls.Increment(0, "no_error")
	client.ClientCertRotationAge.Observe(time.Hour)
	one := func() (uint64, error) { return 1, nil }
	m.CountPackets(PacketCounters{one, one})
	m.CountLocalhostRejected(func() ([]apply.Rejected, error) {
		return []apply.Rejected{{Family: f, Protocol: ir.UDP, Packets: 1}}, nil
	})
	m.CountServices(nil, func() (map[ir.ServicePort]apply.Traffic, error) {
		t := apply.Traffic{Connections: 1}
		t.Refused[render.NoEndpoints] = 1
		return map[ir.ServicePort]apply.Traffic{{Service: ir.Name{Namespace: "default", Name: "web"}, Port: "http"}: t}, nil
	})
	m.MeasureConntrack(one, one)
	m.MeasureStore(func() int { return 1 })
	m.MeasureProxy(func() []apply.Proxied {
		return []apply.Proxied{{Family: f, Protocol: ir.TCP}, {Family: f, Protocol: ir.UDP}}
	})
	m.MeasureProblems(func() Problems { return Problems{} })
	m.MeasureFindings("error", func() int { return 0 })
	m.MeasureContact(func() []Contact { return []Contact{{Resource: "services"}} })
}

// exported lists the metrics of a registry, except those of the process and Go: name, type and
// labels.
func exported(t *testing.T, m *Metrics) []string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		name := f.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		for _, metric := range f.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			out = append(out, fmt.Sprintf("%s %s {%s}", strings.ToLower(f.GetType().String()), name, strings.Join(labels, ",")))
		}
	}
	slices.Sort(out)
	return out
}

func TestMetricsByMode(t *testing.T) {
	const (
		nft = 1 << iota
		ipt
		ipvs
		usp
		hns
		lin = nft | ipt | ipvs
		all = lin | usp | hns
	)
	table := []struct {
		modes int
		what  string
	}{
		{all, "histogram kubeproxy_sync_proxy_rules_duration_seconds {ip_family=IPv6}"},
		{nft | ipt, "histogram kubeproxy_sync_full_proxy_rules_duration_seconds {ip_family=IPv6}"},
		{nft | ipt, "histogram kubeproxy_sync_partial_proxy_rules_duration_seconds {ip_family=IPv6}"},
		{all, "histogram kubeproxy_network_programming_duration_seconds {ip_family=IPv6}"},
		{all, "gauge kubeproxy_sync_proxy_rules_last_timestamp_seconds {ip_family=IPv6}"},
		{all, "gauge kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds {ip_family=IPv6}"},
		{all, "gauge kubeproxy_sync_proxy_rules_endpoint_changes_pending {}"},
		{all, "counter kubeproxy_sync_proxy_rules_endpoint_changes_total {}"},
		{all, "gauge kubeproxy_sync_proxy_rules_service_changes_pending {}"},
		{all, "counter kubeproxy_sync_proxy_rules_service_changes_total {}"},
		{ipt, "gauge kubeproxy_sync_proxy_rules_iptables_total {ip_family=IPv6,table=nat}"},
		{ipt, "gauge kubeproxy_sync_proxy_rules_iptables_last {ip_family=IPv6,table=filter}"},
		{ipt | ipvs, "counter kubeproxy_sync_proxy_rules_iptables_restore_failures_total {ip_family=IPv6}"},
		{ipt, "counter kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total {ip_family=IPv6}"},
		{nft, "counter kubeproxy_sync_proxy_rules_nftables_sync_failures_total {ip_family=IPv6}"},
		{nft, "counter kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total {ip_family=IPv6}"},
		{nft, "gauge kubeproxy_nftables_localhost_nodeport_listeners {ip_family=IPv6}"},
		{nft, "counter kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total {ip_family=IPv6}"},
		{nft, "counter kubeproxy_nftables_localhost_nodeport_rejected_packets_total {ip_family=IPv6,protocol=UDP}"},
		{hns, "counter kubeproxy_sync_proxy_rules_winkernel_lb_update_failures_total {error=other,ip_family=IPv6,lb_type=nodeport}"},
		{nft | usp, "gauge proxyc_proxy_listeners {ip_family=IPv6,protocol=tcp}"},
		{nft | usp, "gauge proxyc_proxy_listeners {ip_family=IPv6,protocol=udp}"},
		{nft | usp, "gauge proxyc_proxy_clients {ip_family=IPv6,protocol=tcp}"},
		{nft | usp, "gauge proxyc_proxy_clients {ip_family=IPv6,protocol=udp}"},
		{nft | usp, "counter proxyc_proxy_clients_total {ip_family=IPv6,protocol=tcp}"},
		{nft | usp, "counter proxyc_proxy_clients_total {ip_family=IPv6,protocol=udp}"},
		{nft | usp, "counter proxyc_proxy_dial_failures_total {ip_family=IPv6,protocol=tcp}"},
		{nft | usp, "counter proxyc_proxy_dial_failures_total {ip_family=IPv6,protocol=udp}"},
		{nft | usp, "counter proxyc_proxy_unreachable_total {ip_family=IPv6,protocol=tcp}"},
		{nft | usp, "counter proxyc_proxy_waited_total {ip_family=IPv6,protocol=tcp}"},
		{nft | usp, "counter proxyc_proxy_dropped_datagrams_total {ip_family=IPv6,protocol=udp}"},
		{lin, "gauge kubeproxy_sync_proxy_rules_no_local_endpoints_total {ip_family=IPv6,traffic_policy=internal}"},
		{all, "counter kubeproxy_proxy_healthz_total {code=200}"},
		{all, "counter kubeproxy_proxy_livez_total {code=503}"},
		{ipt, "counter kubeproxy_iptables_ct_state_invalid_dropped_packets_total {}"},
		{ipt, "counter kubeproxy_iptables_localhost_nodeports_accepted_packets_total {}"},
		{lin, "histogram kubeproxy_conntrack_reconciler_sync_duration_seconds {ip_family=IPv6}"},
		{lin, "counter kubeproxy_conntrack_reconciler_deleted_entries_total {ip_family=IPv6}"},
		{all, "gauge kubernetes_feature_enabled {name=ContextualLogging,stage=BETA}"},
		{all, "histogram rest_client_request_duration_seconds {host=h:1,verb=GET}"},
		{all, "histogram rest_client_rate_limiter_duration_seconds {host=h:1,verb=GET}"},
		{all, "histogram rest_client_request_size_bytes {host=h:1,verb=GET}"},
		{all, "histogram rest_client_response_size_bytes {host=h:1,verb=GET}"},
		{all, "counter rest_client_requests_total {code=200,host=h:1,method=GET}"},
		{all, "counter rest_client_request_retries_total {code=500,host=h:1,verb=GET}"},
		{all, "gauge rest_client_transport_cache_entries {}"},
		{all, "counter rest_client_transport_create_calls_total {result=miss}"},
		{all, "counter rest_client_transport_cache_gc_calls_total {result=deleted}"},
		{all, "counter rest_client_transport_cert_rotation_gc_calls_total {}"},
		{all, "counter rest_client_transport_ca_reload_total {reason=updated,result=success}"},
		{all, "counter rest_client_exec_plugin_call_total {call_status=no_error,code=0}"},
		{all, "histogram rest_client_exec_plugin_certificate_rotation_age {}"},
		{all, "gauge rest_client_exec_plugin_ttl_seconds {}"},
		{all, "gauge kubernetes_build_info {build_date=,compiler=gc,git_commit=,git_tree_state=,git_version=v1.2.3," +
			"go_version=" + runtime.Version() + ",major=1,minor=2,platform=" + runtime.GOOS + "/" + runtime.GOARCH + "}"},
		{all, "counter proxyc_operations_total {verb=change}"},
		{all, "counter proxyc_drift_repaired_total {}"},
		{all, "gauge proxyc_refused_services {}"},
		{all, "histogram proxyc_event_to_kernel_seconds {}"},
		{all, "histogram proxyc_change_to_packet_seconds {since=arrival}"},
		{lin, "counter proxyc_conntrack_failures_total {ip_family=IPv6}"},
		{all, "counter proxyc_leftover_failures_total {}"},
		{lin, "gauge proxyc_conntrack_entries {}"},
		{lin, "gauge proxyc_conntrack_entries_limit {}"},
		{lin, "counter proxyc_service_connections_total {namespace=default,port=http,service=web}"},
		{lin, "counter proxyc_service_refused_total {namespace=default,port=http,reason=no-endpoints,service=web}"},
		{all, "gauge proxyc_store_bytes {}"},
		{all, "gauge proxyc_invalid_files {}"},
		{all, "gauge proxyc_findings {severity=error}"},
		{all, "gauge proxyc_not_served {}"},
		{all, "gauge proxyc_boot_file_failed {}"},
		{all, "gauge proxyc_kube_proxy_beside {}"},
		{all, "gauge proxyc_foreign_rules_may_drop {}"},
		{all, "gauge proxyc_foreign_rules_may_divert {}"},
		{all, "gauge proxyc_api_last_event_timestamp_seconds {resource=services}"},
		{all, "gauge proxyc_api_contact {resource=services}"},
	}
	bits := map[ir.Mode]int{ir.ModeNFTables: nft, ir.ModeIPTables: ipt, ir.ModeIPVS: ipvs, ir.ModeKernelspace: hns, ir.ModeUserspace: usp}
	for _, mode := range ir.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			want := []string{"gauge proxyc_build_info {mode=" + string(mode) + ",version=v1.2.3}"}
			for _, row := range table {
				if row.modes&bits[mode] != 0 {
					want = append(want, row.what)
				}
			}
			slices.Sort(want)
			m := NewMetrics(mode, "v1.2.3", false)
			touch(m)
			if d := cmp.Diff(want, exported(t, m)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestBuckets(t *testing.T) {
	m := NewMetrics(ir.ModeIPTables, "v1", false)
	touch(m)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if !strings.HasPrefix(f.GetName(), "kubeproxy_") || metric.GetHistogram() == nil {
				continue
			}
			var bounds []string
			for _, b := range metric.GetHistogram().GetBucket() {
				bounds = append(bounds, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
			}
			got[f.GetName()] = strings.Join(bounds, " ")
		}
	}
	const doubling = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384"
	want := map[string]string{
		"kubeproxy_sync_proxy_rules_duration_seconds":          doubling,
		"kubeproxy_sync_full_proxy_rules_duration_seconds":     doubling,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds":  doubling,
		"kubeproxy_conntrack_reconciler_sync_duration_seconds": doubling,
		"kubeproxy_network_programming_duration_seconds": "0.25 0.5 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 " +
			"30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 65 70 75 80 85 90 95 100 105 110 115 " +
			"120 150 180 210 240 270 300",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTrafficPolicyLabels(t *testing.T) {
	m := NewMetrics(ir.ModeIPVS, "v1", false)
	m.NoLocalEndpoints("external", "IPv4").Set(1)
	m.NoLocalEndpoints("internal", "IPv4").Set(2)
	body := ask(m.Handler(), "GET", "/metrics", nil).Body
	for _, line := range []string{
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 1`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 2`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("%s is missing", line)
		}
	}
}

// A counter that cannot be read is omitted; the others are exported.
func TestCountPackets(t *testing.T) {
	m := NewMetrics(ir.ModeIPTables, "v1", false)
	n, fails := uint64(7), error(nil)
	m.CountPackets(PacketCounters{func() (uint64, error) { return n, fails }, func() (uint64, error) { return n + 1, nil }})
	scrape := func() string {
		got := ask(m.Handler(), "GET", "/metrics", nil)
		if got.Code != 200 {
			t.Errorf("got %d", got.Code)
		}
		return got.Body
	}
	for _, n = range []uint64{7, 9} {
		if !strings.Contains(scrape(), fmt.Sprintf("kubeproxy_iptables_ct_state_invalid_dropped_packets_total %d\n", n)) {
			t.Errorf("no count of %d", n)
		}
	}
	fails = errors.New("no such rule")
	if got := scrape(); strings.Contains(got, "kubeproxy_iptables_ct_state") || !strings.Contains(got, "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 10\n") {
		t.Errorf("want the counter alone that does not fail:\n%s", got)
	}
}

func TestMeasureContact(t *testing.T) {
	m := NewMetrics(ir.ModeNFTables, "v1", false)
	m.MeasureContact(func() []Contact {
		return []Contact{{Resource: "nodes", At: time.Unix(12, 5e8)}, {Resource: "services", Lost: true}}
	})
	body := ask(m.Handler(), "GET", "/metrics", nil).Body
	for _, want := range []string{
		`proxyc_api_last_event_timestamp_seconds{resource="nodes"} 12.5`, `proxyc_api_last_event_timestamp_seconds{resource="services"} 0`,
		`proxyc_api_contact{resource="nodes"} 1`, `proxyc_api_contact{resource="services"} 0`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

func TestProcessMetrics(t *testing.T) {
	body := ask(NewMetrics(ir.ModeNFTables, "v1", false).Handler(), "GET", "/metrics", nil).Body
	for _, name := range []string{
		"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds",
		"go_goroutines", "go_memstats_alloc_bytes", "go_sched_goroutines_goroutines",
	} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("%s is missing", name)
		}
	}
}

// deaf is a client that does not read its response.
type deaf struct {
	*httptest.ResponseRecorder
	writing chan<- bool
	until   <-chan struct{}
}

func (d deaf) Write(b []byte) (int, error) {
	select {
	case <-d.until:
	case d.writing <- true:
		<-d.until
	}
	return len(b), nil
}

// Clients that do not read their responses do not block other scrapes.
func TestScrapeBesideDeaf(t *testing.T) {
	h := NewMetrics(ir.ModeNFTables, "v1", false).Handler()
	writing, until := make(chan bool), make(chan struct{})
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			h.ServeHTTP(deaf{httptest.NewRecorder(), writing, until}, httptest.NewRequest("GET", "/metrics", nil))
		})
		<-writing
	}
	if got := ask(h, "GET", "/metrics", nil); got.Code != http.StatusOK || !strings.Contains(got.Body, "go_goroutines") {
		t.Errorf("beside 32 that do not read: %d", got.Code)
	}
	close(until)
	all.Wait()
}

// Histograms have native buckets, which the protobuf format contains, if the gate is on.
func TestNativeHistograms(t *testing.T) {
	for _, native := range []bool{true, false} {
		m := NewMetrics(ir.ModeNFTables, "v1", native)
		m.EventSeconds.Observe(0.5)
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, family := range families {
			if family.GetName() != "proxyc_event_to_kernel_seconds" {
				continue
			}
			h := family.GetMetric()[0].GetHistogram()
			if found = true; len(h.GetBucket()) != 15 || (len(h.GetPositiveSpan()) > 0) != native {
				t.Errorf("native %t: %v", native, h)
			}
		}
		if !found {
			t.Error("the histogram is missing")
		}
	}
}

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

var promQL = parser.NewParser(parser.Options{})

// scraped are the labels that Prometheus adds.
var scraped = []string{"job", "instance"}

// metrics returns the daemon's metrics with their labels, by name as in queries (a histogram's
// _bucket, _sum and _count). It reads the table of examples that apply/serve.TestMetricsByMode
// compares with the code.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	text := string(read(t, "../../apply/serve/metrics_test.go"))
	joined := regexp.MustCompile(`" \+[^"{}]*"`).ReplaceAllString(text, "x") // values that are known only at run time
	out := map[string][]string{"up": nil}
	for _, m := range regexp.MustCompile(`"(histogram|gauge|counter) (\w+) \{([^"}]*)\}"`).FindAllStringSubmatch(joined, -1) {
		var pairs []string
		if m[3] != "" {
			pairs = strings.Split(m[3], ",")
		}
		if m[1] != "histogram" {
			out[m[2]] = pairs
			continue
		}
		out[m[2]+"_bucket"], out[m[2]+"_sum"], out[m[2]+"_count"] = append(slices.Clone(pairs), "le=+Inf"), pairs, pairs
	}
	for _, m := range regexp.MustCompile(`"((?:process|go)_\w+)"`).FindAllStringSubmatch(text, -1) {
		out[m[1]] = nil
	}
	if len(out) < 60 || !slices.Equal(out["proxyc_build_info"], []string{"mode=x", "version=v1.2.3"}) {
		t.Fatalf("the table of metrics is not understood: %v", out)
	}
	return out
}

// removedLabels are labels that client-go no longer has. A query that sums by them still works.
var removedLabels = []string{"url"}

// check parses a query, and checks that its metrics and their labels exist.
func check(t *testing.T, known map[string][]string, query string) {
	t.Helper()
	expr, err := promQL.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return
	}
	var all []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		pairs, exists := known[s.Name]
		if !exists {
			t.Errorf("%s: there is no metric %s", query, s.Name)
			return nil
		}
		has := slices.Clone(scraped)
		for _, p := range pairs {
			name, _, _ := strings.Cut(p, "=")
			has = append(has, name)
		}
		all = append(all, has...)
		for _, m := range s.LabelMatchers {
			if m.Name != labels.MetricName && !slices.Contains(has, m.Name) {
				t.Errorf("%s: metric %s has no label %s", query, s.Name, m.Name)
			}
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !slices.Contains(all, l) && !slices.Contains(removedLabels, l) {
					t.Errorf("%s: no metric has a label %s", query, l)
				}
			}
		}
		return nil
	})
}

// moreValues are values of labels that a daemon has in addition to the example's.
var moreValues = map[string][]string{
	"code=200": {"200", "304", "409", "500"}, "verb=GET": {"GET", "POST"}, "ip_family=IPv6": {"IPv4", "IPv6"}, "since=arrival": {"arrival", "trigger"},
}

// series returns an hour of all metrics of a daemon, in the format of promtool's tests.
func series(known map[string][]string) string {
	var out strings.Builder
	out.WriteString("load 1m\n")
	for _, name := range slices.Sorted(maps.Keys(known)) {
		sets := []string{`job="kube-proxy", instance="node1"`}
		for _, p := range known[name] {
			label, value, _ := strings.Cut(p, "=")
			values := []string{value}
			if v, ok := moreValues[p]; ok {
				values = v
			}
			if label == "le" {
				values = []string{"0.5", "1", "+Inf"}
			}
			var next []string
			for _, s := range sets {
				for _, v := range values {
					next = append(next, fmt.Sprintf("%s, %s=%q", s, label, v))
				}
			}
			sets = next
		}
		for _, s := range sets {
			fmt.Fprintf(&out, "  %s{%s} 1+1x60\n", name, s)
		}
	}
	return out.String()
}

// ask evaluates a query at a time after the first sample.
func ask(t *testing.T, s *promqltest.LazyLoader, query string, at time.Duration) promql.Vector {
	t.Helper()
	when := time.Unix(0, 0).UTC().Add(at)
	q, err := s.QueryEngine().NewInstantQuery(s.Context(), s.Queryable(), nil, query, when)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer q.Close()
	got, err := q.Exec(s.Context()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return slices.Clone(got)
}

// load returns an engine with series.
func load(t *testing.T, text string) *promqltest.LazyLoader {
	t.Helper()
	s, err := promqltest.NewLazyLoader(text, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: promQL})
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.WithSamplesTill(time.Unix(0, 0).Add(24*time.Hour), func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	})
	return s
}

// checkQueries checks that queries use existing metrics, and return something.
func checkQueries(t *testing.T, queries []string) {
	t.Helper()
	known := metrics(t)
	s := load(t, series(known))
	for _, q := range queries {
		check(t, known, q)
		if !t.Failed() && len(ask(t, s, q, 30*time.Minute)) == 0 {
			t.Errorf("%s: no answer", q)
		}
	}
}

// A dashboard contains the parts of a dashboard that the tests read.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, LegendFormat string }
	}
}

func TestDashboard(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal(read(t, manifests+"/dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	set := map[string]string{"__rate_interval": "5m"}
	var queries []string
	for _, v := range d.Templating.List {
		if set[v.Name] = ".*"; v.Type == "query" {
			m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
			if m == nil {
				t.Fatalf("variable %s: %s", v.Name, v.Definition)
			}
			queries = append(queries, fmt.Sprintf("count by (%s) (%s)", m[2], m[1]))
		}
	}
	var pairs []string
	for name, value := range set {
		pairs = append(pairs, "$"+name, value)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || len(p.Targets) == 0 {
			t.Errorf("panel %d, %s: its number is another's, it is too wide, or it shows nothing", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	if len(ids) < 12 {
		t.Errorf("%d panels", len(ids))
	}
	for i := range queries {
		queries[i] = strings.NewReplacer(pairs...).Replace(queries[i])
	}
	checkQueries(t, queries)
}

// TestKubeProxysDashboard evaluates the queries of kubernetes-mixin's dashboard of kube-proxy
// (dashboards/proxy.libsonnet), with the selectors of one cluster.
func TestKubeProxysDashboard(t *testing.T) {
	const of = `job="kube-proxy", instance=~"node.*"`
	queries := []string{
		`sum(up{job="kube-proxy"})`,
		`count by (instance) (kubeproxy_network_programming_duration_seconds_bucket{job="kube-proxy"})`, // its variable
	}
	for _, h := range []string{"kubeproxy_sync_proxy_rules_duration_seconds", "kubeproxy_network_programming_duration_seconds"} {
		queries = append(queries, fmt.Sprintf("sum(rate(%s_count{%s}[5m]))", h, of))
	}
	queries = append(queries,
		`histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{`+of+`}[5m]))`,
		`histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket{`+of+`}[5m])) by (instance, le))`)
	for _, code := range []string{"2..", "3..", "4..", "5.."} {
		queries = append(queries, fmt.Sprintf("sum(rate(rest_client_requests_total{%s, code=~%q}[5m]))", of, code))
	}
	for _, verb := range []string{"POST", "GET"} {
		queries = append(queries, fmt.Sprintf("histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{%s, verb=%q}[5m])) by (verb, url, le))", of, verb))
	}
	queries = append(queries, `process_resident_memory_bytes{`+of+`}`, `rate(process_cpu_seconds_total{`+of+`}[5m])`, `go_goroutines{`+of+`}`)
	checkQueries(t, queries)
}

// alertCases contains, for each alert, series that make it fire, and similar ones that do not.
// There is a sample each minute.
var alertCases = map[string]struct{ fires, quiet string }{
	"ProxycCutOff": {
		`proxyc_api_last_event_timestamp_seconds{instance="a", resource="services"} 0+60x10 600+0x50`,
		`proxyc_api_last_event_timestamp_seconds{instance="a", resource="services"} 0 0+0x3 240+60x56`},
	"ProxycContactLost": {
		`proxyc_api_contact{instance="a", resource="services"} 1+0x10 0+0x50`,
		`proxyc_api_contact{instance="a", resource="services"} 1 0 1+0x58`},
	"ProxycDown": {
		"up{job=\"p\", instance=\"a\"} 1+0x10 0+0x50\n  proxyc_build_info{job=\"p\", instance=\"a\"} 1+0x10",
		"up{job=\"p\", instance=\"a\"} 1+0x10 0 0 0 1+0x47\n  proxyc_build_info{job=\"p\", instance=\"a\"} 1+0x60\n  up{job=\"kube-proxy\", instance=\"a\"} 0+0x60"},
	"ProxycNotReady": {
		"kubeproxy_proxy_healthz_total{job=\"p\", instance=\"a\", code=\"503\"} 0+6x60\n  proxyc_build_info{job=\"p\", instance=\"a\"} 1+0x60",
		"kubeproxy_proxy_healthz_total{job=\"p\", instance=\"a\", code=\"503\"} 0 6+0x59\n  kubeproxy_proxy_healthz_total{job=\"p\", instance=\"a\", code=\"200\"} 0+6x60\n" +
			"  proxyc_build_info{job=\"p\", instance=\"a\"} 1+0x60\n  kubeproxy_proxy_healthz_total{job=\"p\", instance=\"b\", code=\"503\"} 0+6x60"},
	"ProxycForeignRulesMayDrop": {
		"proxyc_foreign_rules_may_drop{instance=\"a\"} 1+0x60\n  proxyc_foreign_rules_may_divert{instance=\"a\"} 0+0x60",
		"proxyc_foreign_rules_may_drop{instance=\"a\"} 1+0x5 0+0x55\n  proxyc_foreign_rules_may_divert{instance=\"a\"} 0+0x60"},
	"ProxycBehind": {
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{instance=\"a\"} 100+60x60\n  kubeproxy_sync_proxy_rules_last_timestamp_seconds{instance=\"a\"} 99+0x60\n" +
			"  proxyc_build_info{instance=\"a\"} 1+0x60",
		// b is a kube-proxy, which has metrics of these names, too
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{instance=\"a\"} 100+60x60\n  kubeproxy_sync_proxy_rules_last_timestamp_seconds{instance=\"a\"} 99+60x60\n" +
			"  kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{instance=\"b\"} 100+60x60\n  kubeproxy_sync_proxy_rules_last_timestamp_seconds{instance=\"b\"} 99+0x60\n" +
			"  proxyc_build_info{instance=\"a\"} 1+0x60"},
	"ProxycProxyHangsUp": {
		"proxyc_proxy_unreachable_total{instance=\"a\", protocol=\"tcp\"} 0+1x60\n  proxyc_proxy_clients_total{instance=\"a\", protocol=\"tcp\"} 0+10x60",
		"proxyc_proxy_unreachable_total{instance=\"a\", protocol=\"tcp\"} 0+1x60\n  proxyc_proxy_clients_total{instance=\"a\", protocol=\"tcp\"} 0+100x60"},
	"ProxycLocalhostPortTaken": {
		"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{instance=\"a\"} 0+30x60\n  proxyc_build_info{instance=\"a\"} 1+0x60",
		"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{instance=\"a\"} 0 5+0x59\n" +
			"  kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{instance=\"b\"} 0+30x60\n  proxyc_build_info{instance=\"a\"} 1+0x60"},
	"ProxycServicesRefused": {`proxyc_refused_services{instance="a"} 1+0x60`, `proxyc_refused_services{instance="a"} 1 1 1 0+0x57`},
	"ProxycServiceRefuses": {
		`proxyc_service_refused_total{instance="a", namespace="shop", service="cart", port="http", reason="no-endpoints"} 0+60x60`,
		"proxyc_service_refused_total{instance=\"a\", namespace=\"shop\", service=\"cart\", port=\"http\", reason=\"no-endpoints\"} 0+60x5 300+0x55\n" +
			"  proxyc_service_refused_total{instance=\"a\", namespace=\"shop\", service=\"cart\", port=\"http\", reason=\"source-ranges\"} 0+60x60"},
	"ProxycFindings":        {`proxyc_findings{instance="a", severity="error"} 1+0x60`, `proxyc_findings{instance="a", severity="warning"} 1+0x60`},
	"ProxycInvalidFiles":    {`proxyc_invalid_files{instance="a"} 1+0x60`, `proxyc_invalid_files{instance="a"} 1 1 1 0+0x57`},
	"ProxycNotServed":       {`proxyc_not_served{instance="a"} 1+0x60`, `proxyc_not_served{instance="a"} 1 1 1 0+0x57`},
	"ProxycBootFile":        {`proxyc_boot_file_failed{instance="a"} 1+0x60`, `proxyc_boot_file_failed{instance="a"} 1+0x10 0+0x50`},
	"ProxycKubeProxyBeside": {`proxyc_kube_proxy_beside{instance="a"} 1+0x60`, `proxyc_kube_proxy_beside{instance="a"} 1+0x10 0+0x50`},
	"ProxycFought":          {`proxyc_drift_repaired_total{instance="a"} 0+3x60`, `proxyc_drift_repaired_total{instance="a"} 0+3x5 15+0x55`},
	"ProxycConntrackFull": {
		"proxyc_conntrack_entries{instance=\"a\"} 95+0x60\n  proxyc_conntrack_entries_limit{instance=\"a\"} 100+0x60",
		"proxyc_conntrack_entries{instance=\"a\"} 85+0x60\n  proxyc_conntrack_entries_limit{instance=\"a\"} 100+0x60"},
	"ProxycRestarts": {
		"process_start_time_seconds{job=\"p\", instance=\"a\"} 0+60x60\n  proxyc_build_info{job=\"p\", instance=\"a\"} 1+0x60",
		"process_start_time_seconds{job=\"p\", instance=\"a\"} 0+0x30 60+0x30\n  proxyc_build_info{job=\"p\", instance=\"a\"} 1+0x60\n  process_start_time_seconds{job=\"other\", instance=\"a\"} 0+60x60"},
	"ProxycMissesObjective": {
		"proxyc_change_to_packet_seconds_bucket{instance=\"a\", since=\"arrival\", le=\"2.048\"} 0+98x60\n  proxyc_change_to_packet_seconds_count{instance=\"a\", since=\"arrival\"} 0+100x60",
		"proxyc_change_to_packet_seconds_bucket{instance=\"a\", since=\"arrival\", le=\"2.048\"} 0+999x60\n  proxyc_change_to_packet_seconds_count{instance=\"a\", since=\"arrival\"} 0+1000x60\n" +
			"  proxyc_change_to_packet_seconds_bucket{instance=\"a\", since=\"trigger\", le=\"2.048\"} 0+9x60\n  proxyc_change_to_packet_seconds_count{instance=\"a\", since=\"trigger\"} 0+100x60"},
	"ProxycSlow": {
		"proxyc_event_to_kernel_seconds_bucket{instance=\"a\", le=\"4.096\"} 0+90x60\n  proxyc_event_to_kernel_seconds_bucket{instance=\"a\", le=\"16.384\"} 0+100x60\n" +
			"  proxyc_event_to_kernel_seconds_bucket{instance=\"a\", le=\"+Inf\"} 0+100x60",
		"proxyc_event_to_kernel_seconds_bucket{instance=\"a\", le=\"4.096\"} 0+100x60\n  proxyc_event_to_kernel_seconds_bucket{instance=\"a\", le=\"16.384\"} 0+100x60\n" +
			"  proxyc_event_to_kernel_seconds_bucket{instance=\"a\", le=\"+Inf\"} 0+100x60"},
}

// firing reports whether an alert would fire at some minute of an hour: its expression returns
// the same series for as long as the rule requires.
func firing(t *testing.T, expr string, lasts time.Duration, samples string) bool {
	t.Helper()
	s := load(t, "load 1m\n  "+samples)
	since := map[string]time.Duration{}
	for at := time.Duration(0); at <= time.Hour; at += time.Minute {
		now := map[string]time.Duration{}
		for _, v := range ask(t, s, expr, at) {
			key := v.Metric.String()
			if from, ok := since[key]; ok {
				now[key] = from
			} else {
				now[key] = at
			}
			if at-now[key] >= lasts {
				return true
			}
		}
		since = now
	}
	return false
}

func TestAlerts(t *testing.T) {
	groups, errs := rulefmt.Parse(read(t, manifests+"/alerts.yaml"), false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	known := metrics(t)
	tested := map[string]bool{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			check(t, known, r.Expr)
			c, ok := alertCases[r.Alert]
			if !ok {
				t.Errorf("%s: is never seen to fire: alertCases lacks it", r.Alert)
				continue
			}
			tested[r.Alert] = true
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("%s: needs a label severity and an annotation summary", r.Alert)
			}
			if !firing(t, r.Expr, time.Duration(r.For), c.fires) {
				t.Errorf("%s does not fire for\n  %s", r.Alert, c.fires)
			}
			if firing(t, r.Expr, time.Duration(r.For), c.quiet) {
				t.Errorf("%s fires for\n  %s", r.Alert, c.quiet)
			}
		}
	}
	for name := range alertCases {
		if !tested[name] {
			t.Errorf("%s: there is no such alert", name)
		}
	}
}

package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// fails waits until the daemon ends with an error.
func (w *watched) fails() {
	w.T.Helper()
	ended := make(chan error, 1)
	go func() { ended <- w.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			w.T.Error("the daemon ended without an error")
		}
	case <-time.After(applytest.ScaledTimeout(time.Minute)):
		w.T.Fatal("the daemon goes on")
	}
}

// page returns what the metrics server answers with code 200.
func (w *watched) page(path string) string {
	w.T.Helper()
	code, body, err := w.Get(nodetest.MetricsPort, path)
	if err != nil || code != http.StatusOK {
		w.T.Fatalf("%s: %d %v\n%s", path, code, err, body)
	}
	return body
}

// value returns the value of a series in a page of metrics.
func value(t *testing.T, page, series string) string {
	t.Helper()
	for line := range strings.Lines(page) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Errorf("%s is missing", series)
	return ""
}

// localCluster has Services with traffic policy Local whose endpoints are elsewhere.
const localCluster = `{apiVersion: v1, kind: Service, metadata: {name: l, namespace: ns}, spec: {type: NodePort, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9],
  ipFamilies: [IPv4], internalTrafficPolicy: Local, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: l-1, namespace: ns, labels: {kubernetes.io/service-name: l}},
  addressType: IPv4, endpoints: [{addresses: [10.244.1.9], nodeName: other}], ports: [{port: 8080, name: ""}]}
---
`

// TestWatchMetrics asks for every metric that a mode has, after real syncs.
func TestWatchMetrics(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.Sync(applytest.Services("a"))
		w.Write("cluster.yaml", applytest.Services("a", "b")+localCluster)
		w.Until("a change", func(st status.Status) bool { return nodetest.Synced(st) && st.LastKind == "change" })
		for _, path := range []string{"/healthz", "/livez"} {
			if _, _, err := w.Get(nodetest.HealthPort, path); err != nil {
				t.Fatal(err)
			}
		}
		text := w.page("/metrics")
		value := func(series string) string { t.Helper(); return value(t, text, series) }
		for _, series := range []string{"proxyc_conntrack_entries", "proxyc_conntrack_entries_limit"} {
			if n, err := strconv.ParseFloat(value(series), 64); err != nil || n < 0 {
				t.Errorf("%s is %v, %v", series, n, err)
			}
		}
		ipt := w.Plane.Mode == "iptables"
		for _, f := range []string{"IPv4", "IPv6"} {
			l := `{ip_family="` + f + `"}`
			some := []string{
				"kubeproxy_sync_proxy_rules_duration_seconds_count" + l,
				"kubeproxy_sync_proxy_rules_last_timestamp_seconds" + l,
				"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" + l,
			}
			if w.Plane.Mode != "ipvs" { // kube-proxy knows no partial syncs there
				some = append(some, "kubeproxy_sync_full_proxy_rules_duration_seconds_count"+l, "kubeproxy_sync_partial_proxy_rules_duration_seconds_count"+l)
			}
			for _, series := range some {
				if v := value(series); v == "0" {
					t.Errorf("%s is 0", series)
				}
			}
			zero := []string{"kubeproxy_conntrack_reconciler_deleted_entries_total" + l}
			switch {
			case ipt:
				zero = append(zero, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"+l,
					"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total"+l)
			case w.Plane.Mode == "ipvs":
				zero = append(zero, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"+l)
			default:
				zero = append(zero, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"+l,
					"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total"+l)
			}
			for _, series := range zero {
				if v := value(series); v != "0" {
					t.Errorf("%s is %s", series, v)
				}
			}
		}
		want := map[string]string{
			"kubeproxy_sync_proxy_rules_endpoint_changes_total":                                               "3",
			"kubeproxy_sync_proxy_rules_service_changes_total":                                                "3",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                                             "0",
			"kubeproxy_sync_proxy_rules_service_changes_pending":                                              "0",
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"}`: "1",
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"}`: "1",
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="external"}`: "0",
			`kubeproxy_proxy_healthz_total{code="200"}`:                                                       "1",
			`kubeproxy_proxy_livez_total{code="200"}`:                                                         "1",
			"proxyc_drift_repaired_total":                                                                     "0",
			"proxyc_refused_services":                                                                         "0",
			"proxyc_event_to_kernel_seconds_count":                                                            "2",
			`proxyc_change_to_packet_seconds_count{since="arrival"}`:                                          "4", // the start does not count
		}
		if w.Plane.Mode == "ipvs" {
			want["proxyc_draining_backends"] = "0"
			for _, policy := range []string{"internal", "external"} { // endpoints elsewhere serve: docs/reference/metrics.md
				want[`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="`+policy+`"}`] = "0"
			}
		}
		if ipt {
			want["kubeproxy_iptables_ct_state_invalid_dropped_packets_total"] = "0"
		}
		got := map[string]string{}
		for series := range want {
			got[series] = value(series)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, series := range []string{"proxyc_store_bytes", `proxyc_operations_total{verb="add"}`} {
			if v := value(series); v == "0" {
				t.Errorf("%s is 0", series)
			}
		}
		if !ipt {
			return
		}
		saved := w.Rules()
		_, nat, _ := strings.Cut(saved, "*nat")
		nat, _, _ = strings.Cut(nat, "COMMIT")
		total := fmt.Sprint(strings.Count(nat, "\n-A KUBE-"))
		if v := value(`kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"}`); v != total {
			t.Errorf("%s rules of nat, the kernel has %s", v, total)
		}
		if v := value(`kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="nat"}`); v == "0" || v == total {
			t.Errorf("%s of %s rules written by a change", v, total)
		}
	})
}

// A connection to a node port at localhost counts once.
func TestWatchLocalhostNodePorts(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(variant, func(t *testing.T) {
			w := newWatched(t, variant)
			w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "iptables"), "localhostNodePorts: false", "localhostNodePorts: true, masqueradeAll: true", 1))
			w.Write("cluster.yaml", nodetest.NodePort)
			w.serve("10.244.1.10:8080")
			w.Start("proxyc", "watch")
			w.Until("first sync", nodetest.Synced)
			for _, want := range []string{"0", "1", "2"} {
				if got := value(t, w.page("/metrics"), "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"); got != want {
					t.Errorf("counted %s, want %s", got, want)
				}
				for _, to := range []string{"127.0.0.1:30080", "10.244.1.10:8080"} { // by the node port, and past it
					conn, err := w.NS.Dial(t.Context(), "tcp", netip.AddrPort{}, netip.MustParseAddrPort(to))
					if err != nil {
						t.Fatal(err)
					}
					conn.Close()
				}
			}
		})
	}
}

// TestWatchDebugPages looks at the last plan, the IR and a trace.
func TestWatchDebugPages(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("config", fmt.Sprintf(nodetest.Config, "nftables")+"enableProfiling: true\n")
	w.Sync(applytest.Services("a"))
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Until("a change", func(st status.Status) bool { return nodetest.Synced(st) && st.LastKind == "change" })
	body := w.page("/debug/proxyc/plan")
	if !strings.Contains(body, `"kind":"change"`) || strings.Contains(body, `"more"`) || !strings.Contains(body, `"service":{"namespace":"ns","name":"b"}`) || strings.Contains(body, `"name":"a"`) {
		t.Errorf("the plan: %s", body)
	}
	if ir := w.page("/debug/proxyc/ir"); !strings.Contains(ir, "10.96.0.98") {
		t.Errorf("the IR lacks Service b: %s", ir)
	}
	w.Write("config", fmt.Sprintf(nodetest.Config, "nftables"))
	for _, path := range []string{"plan", "ir"} {
		applytest.Until(w.T, 10*time.Second, "no "+path+" without enableProfiling", func() bool {
			code, _, err := w.Get(nodetest.MetricsPort, "/debug/proxyc/"+path)
			return err == nil && code == http.StatusNotFound
		})
	}
}

// TestWatchStatusSocket asks a daemon without metrics server.
func TestWatchStatusSocket(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Args = append(w.Args, "--status-socket", w.File("socket"))
	w.Write("cluster.yaml", applytest.Services("a"))
	ask := func() (string, error) {
		out, err := w.NS.Run(w.NS.Command(context.Background(), "proxyc", "status", "--status-socket", w.File("socket")))
		return string(out), err
	}
	for _, end := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} { // the second start finds what the first left
		w.Start("proxyc", "watch")
		applytest.Until(w.T, 20*time.Second, "nodetest.Synced, by the socket", func() bool {
			out, err := ask()
			return err == nil && strings.Contains(out, "synced       yes")
		})
		w.Stop(end)
		_, err := os.Stat(w.File("socket"))
		if gone := os.IsNotExist(err); gone != (end == syscall.SIGTERM) {
			t.Errorf("after %s the socket is gone: %t", end, gone)
		}
	}
	if out, err := ask(); err == nil {
		t.Errorf("a daemon that ended answers %q", out)
	}
}

// TestWatchReady compares /readyz with the state of the kernel.
func TestWatchReady(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	ready := func(what string, want int, reason string) {
		t.Helper()
		applytest.Until(w.T, 20*time.Second, what, func() bool {
			code, body, err := w.Get(nodetest.HealthPort, "/readyz")
			if code == http.StatusOK && want == http.StatusOK && !w.Has("a") {
				t.Errorf("%s: ready, and the kernel lacks Service a", what)
			}
			return err == nil && code == want && strings.Contains(body, reason)
		})
	}
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch")
	ready("first sync", http.StatusOK, "")

	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Holds(10*time.Second, "b", true)
	ready("a change", http.StatusOK, "")

	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "iptables"), "minSyncPeriod: 0s, local", "minSyncPeriod: 5s, local", 1))
	applytest.Until(w.T, 10*time.Second, "the new configuration", func() bool {
		return strings.Contains(w.Log.String(), "restarting with it")
	})
	ready("after the new configuration", http.StatusOK, "")
	w.Write("cluster.yaml", applytest.Services("a", "c"))
	ready("while a change waits for minSyncPeriod", http.StatusServiceUnavailable, "a change is pending")
	ready("after it", http.StatusOK, "")
	if !w.Has("c") {
		t.Error("ready, and the kernel lacks Service c")
	}
	w.Must("iptables-nft -t nat -F")
	ready("while drift waits for minSyncPeriod", http.StatusServiceUnavailable, "another program may have changed the rules: a full sync is pending")
	applytest.Until(w.T, 20*time.Second, "ready when the drift is repaired", func() bool {
		code, _, err := w.Get(nodetest.HealthPort, "/readyz")
		return err == nil && code == http.StatusOK && w.Has("c")
	})
}

// TestWatchHardFail: the reason of the daemon's end reaches the cluster.
func TestWatchHardFail(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	events := make(chan string, 10)
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(rw, "later", http.StatusServiceUnavailable)
			return
		}
		body, _ := io.ReadAll(r.Body)
		events <- string(body)
		rw.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		rw.WriteHeader(http.StatusCreated)
		rw.Write(body)
	}))
	var taken net.Listener
	if err := w.NS.Do(func() (err error) {
		if api.Listener, err = net.Listen("tcp4", "127.0.0.1:0"); err == nil {
			taken, err = net.Listen("tcp", fmt.Sprintf(":%d", nodetest.HealthPort))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	api.Start()
	defer api.Close()
	w.Write("kubeconfig", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "`+api.URL+`"}}], users: [{name: u}]}`)
	w.Write("config", fmt.Sprintf(nodetest.Config, "nftables")+"bindAddressHardFail: true\nclientConnection: {kubeconfig: "+w.File("kubeconfig")+"}\n")
	w.Args = []string{"-c", w.File("config"), "--hostname-override", "node1"}
	w.Start("proxyc", "watch")
	w.fails()
	close(events)
	var all strings.Builder
	for e := range events {
		all.WriteString(e)
	}
	if !strings.Contains(all.String(), "FailedToStartProxierHealthcheck") {
		t.Errorf("events: %q", all.String())
	}
}

// TestWatchChecksNode: like kube-proxy, the daemon ends only if the local detector has only a
// family that the node does not have (startup checks of the families, CFG-14).
func TestWatchChecksNode(t *testing.T) {
	t.Parallel()
	const clusterCIDR = "clusterCIDR: must have an IPv4 CIDR"
	for _, tt := range []struct {
		name, config, node string // of the config clusterCIDR, of the Node spec
		setup, says        string
		ends               bool
	}{
		{"clusterCIDR of the other family", "clusterCIDR: fd00::/64", "", "", clusterCIDR, false},
		{"clusterCIDR of a family that the kernel lacks", "clusterCIDR: fd00::/64", "", "-6 addr flush dev lo", clusterCIDR, true},
		{"podCIDRs of the other family", "detectLocalMode: NodeCIDR", "podCIDRs: ['fd00::/64']", "", "detectLocalMode: must not be NodeCIDR", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWatched(t, "nftables")
			if tt.setup != "" {
				w.Must("ip " + tt.setup)
			}
			w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "clusterCIDR: 10.244.0.0/16", tt.config, 1))
			w.Write("cluster.yaml", applytest.Services("a")+`
{apiVersion: v1, kind: Node, metadata: {name: node1}, spec: {`+tt.node+`}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
`)
			w.Start("proxyc", "watch")
			if tt.ends {
				w.fails()
			} else {
				w.Holds(20*time.Second, "a", true)
			}
			if log := w.Log.String(); !strings.Contains(log, tt.says) {
				t.Errorf("the log does not tell why")
			}
			if tt.ends && w.Has("a") {
				t.Error("rules were written all the same")
			}
		})
	}
}

// A daemon that never had rules in force is not restarted for that. One that had rules is, if a
// change waits for twice the syncPeriod.
func TestWatchHealthBeforeRules(t *testing.T) {
	t.Parallel()
	const quick = "syncPeriod: 1s, minSyncPeriod: 0s"
	start := func(t *testing.T) *watched {
		w := newWatched(t, "iptables-nft")
		w.Write("cluster.yaml", applytest.Services("a"))
		return w
	}
	hurry := func(w *watched, config string) {
		w.Write("config", strings.Replace(config, "minSyncPeriod: 0s", quick, 1))
	}
	late := func(w *watched, at time.Time) func(status.Status) bool { // later than twice the syncPeriod
		return func(st status.Status) bool { return st.Now.Sub(at) > 3*time.Second }
	}
	answers := func(w *watched, want map[string]int) {
		w.T.Helper()
		for path, want := range want {
			if code := w.ask(w.T, "127.0.0.1:10256", path); code != want {
				w.T.Errorf("%s: %d, want %d", path, code, want)
			}
		}
	}
	waits := map[string]int{"/livez": 200, "/healthz": 503, "/readyz": 503} // /healthz, as the Node is not known
	t.Run("no API server", func(t *testing.T) {
		w := start(t)
		hurry(w, w.withoutServer())
		w.Start("proxyc", "watch")
		st := w.Until("it waits", func(st status.Status) bool { return strings.HasPrefix(st.Reason, "waiting for the initial objects") })
		w.Until("it has waited for long", late(w, st.Started))
		answers(w, waits)
	})
	t.Run("refused boot file", func(t *testing.T) {
		w := start(t)
		hurry(w, w.withoutServer())
		must(t, os.WriteFile(w.File("boot"), []byte("{"), 0o600))
		w.Start("proxyc", "watch", "--boot-from", w.File("boot"))
		st := w.Until("it is refused", func(st status.Status) bool { return st.BootFile != nil && st.BootFile.Invalid != "" })
		w.Until("it has waited for long", late(w, st.Started))
		answers(w, waits)
	})
	t.Run("refused commit", func(t *testing.T) {
		w := start(t)
		config := fmt.Sprintf(nodetest.Config, "iptables")
		hurry(w, config)
		tool, err := exec.LookPath("iptables-nft-restore")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.File("iptables-nft-restore"), fmt.Appendf(nil, "#!/bin/sh\n[ ! -e %s ] || [ \"$1\" = --version ] || { echo 'refused, for a test' >&2; exit 4; }\nexec %s \"$@\"\n", w.File("refuse"), tool), 0o755); err != nil {
			t.Fatal(err)
		}
		w.Env = append(w.Env, "PATH="+w.Dir+":"+os.Getenv("PATH"))
		refuse := func() { w.Write("refuse", "") }
		refuse()
		w.Start("proxyc", "watch")
		refused := func(st status.Status) bool {
			return st.LastError != nil && strings.Contains(st.LastError.Error, "refused, for a test")
		}
		st := w.Until("it is refused", refused)
		w.Until("it has waited for long", late(w, st.Started))
		answers(w, map[string]int{"/livez": 200, "/healthz": 200, "/readyz": 503})
		must(t, os.Remove(w.File("refuse")))
		w.Until("the rules are in force", nodetest.Synced)
		answers(w, map[string]int{"/livez": 200, "/healthz": 200, "/readyz": 200})
		refuse()
		w.Write("cluster.yaml", applytest.Services("a", "b"))
		applytest.Until(w.T, 10*time.Second, "a change waits for long", func() bool { return w.ask(t, "127.0.0.1:10256", "/livez") == 503 })
		answers(w, map[string]int{"/healthz": 503})
	})
}

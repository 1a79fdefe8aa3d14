package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// When the daemon is ready, the health checks are served.
func TestReadyComesLast(t *testing.T) {
	taken, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	s := newTestSession(t, "iptables")
	defer s.rules.effects.checks.close()
	tried := false
	s.rules.effects.checks.IPv4.Failed = func(_ ir.Name, _ uint16, err error) {
		if err == nil {
			return
		}
		tried = true
		if s.health.Ready().Ready {
			t.Error("ready before the health checks were opened")
		}
	}
	programs := ir.NewPrograms(
		&ir.Program{Family: ir.IPv4, Node: ir.Node{NodePorts: ir.NodePortAddrs{All: true}}, Services: []ir.Service{{Health: &ir.HealthCheck{Port: port}}}},
		&ir.Program{Family: ir.IPv6},
	)
	s.rules.synced(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}})
	s.rules.observer.report(reconcile.State{Known: true})
	if !tried {
		t.Error("the health check was not opened")
	}
	if r := s.health.Ready(); r.Ready || !strings.Contains(r.Reason, "does not answer") {
		t.Errorf("while a health check does not answer: %+v", r)
	}
	taken.Close()
	s.rules.effects.checks.IPv4.Change(nil)
	if r := s.health.Ready(); !r.Ready {
		t.Errorf("not ready after a sync: %+v", r)
	}
}

// healthChecked returns Programs with one Service, and the address of its health check.
func healthChecked(t *testing.T) (programs ir.Programs, service *ir.Service, addr string) {
	t.Helper()
	var port uint16
	for free := net.Listener(nil); free == nil; { // below the ports that the kernel gives to other tests meanwhile
		port = uint16(20000 + rand.IntN(10000))
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			free = l
			l.Close()
		}
	}
	addr = fmt.Sprintf("127.0.0.1:%d", port)
	all := []ir.Service{{Name: ir.Name{Namespace: "shop", Name: "web"}, Health: &ir.HealthCheck{Port: port, Local: 1}}}
	programs = ir.NewPrograms(
		&ir.Program{Family: ir.IPv4, Node: ir.Node{NodePorts: ir.NodePortAddrs{All: true}}, Services: all},
		&ir.Program{Family: ir.IPv6},
	)
	return programs, &all[0], addr
}

// The health check of a Service without rules does not attract traffic to the node.
func TestHealthCheckOfRefused(t *testing.T) {
	programs, service, addr := healthChecked(t)
	s := newTestSession(t, "iptables")
	defer s.rules.effects.checks.close()
	refused := []apply.Refusal{{Service: service.Name, Reason: errors.New("no")}}
	change := ir.Changes{IPv4: []ir.Change{{Name: service.Name, New: service}}}
	for i, step := range []struct {
		sync reconcile.Sync
		code int
	}{
		{reconcile.Sync{Kind: reconcile.Full, Done: reconcile.Done{Refused: refused}}, http.StatusServiceUnavailable},
		{reconcile.Sync{Kind: reconcile.Full}, http.StatusOK},
		{reconcile.Sync{Kind: reconcile.Change, Done: reconcile.Done{Refused: refused}, Work: reconcile.Work{Changes: change}}, http.StatusServiceUnavailable},
		{reconcile.Sync{Kind: reconcile.Change}, http.StatusOK},
	} {
		step.sync.Work.Programs = programs
		s.rules.synced(&step.sync)
		r, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != step.code {
			t.Errorf("step %d: %s, want %d", i, r.Status, step.code)
		}
	}
}

// From the arrival of a change until it is applied, neither the Status nor the health report it as
// applied. Tools wait for that.
func TestChangeIsNeverMissed(t *testing.T) {
	files := []*status.File{{Path: "new"}}
	change := func(s *session) { // as input.readFiles
		s.input.store.Set(&snapshot.Service{Name: ir.Name{Namespace: "ns", Name: "web"}})
		s.input.snapshot.Store(&files)
	}
	take := func(s *session) { s.input.follower.Take(reconcile.Change) }
	record := func(s *session) { s.rules.observer.report(reconcile.State{Known: true, Wanted: 1}) }
	steps := []func(*session){change, take, record}
	start := func() *session {
		s := newTestSession(t, "nftables")
		record(s)
		s.rules.observer.report(reconcile.State{Known: true})
		return s
	}
	parts := len(start().status.parts)
	for first := range parts {
		for second := first; second <= parts; second++ { // the parts of a Status before the changes and before the rest
			for n := range steps {
				s := start()
				before := func(part int, steps []func(*session)) {
					s.status.parts = slices.Insert(s.status.parts, part, func(*status.Status) {
						for _, step := range steps {
							step(s)
						}
					})
				}
				before(second, steps[n:])
				before(first, steps[:n])
				if st := s.status.get(); st.Synced && len(st.Snapshot) > 0 {
					t.Errorf("%d steps before part %d of a Status, the rest before part %d: synced with files whose changes are not applied", n, first, second)
				}
			}
		}
	}
	s := start()
	if r := s.health.Ready(); !r.Ready {
		t.Errorf("before the change: %+v", r)
	}
	for i, step := range steps {
		step(s)
		if r, st := s.health.Ready(), s.status.get(); r.Ready || st.Synced {
			t.Errorf("after step %d: %+v, synced: %t", i, r, st.Synced)
		}
	}
	s.rules.observer.report(reconcile.State{Known: true, Wanted: 1, Applied: 1})
	if r, st := s.health.Ready(), s.status.get(); !r.Ready || !st.Synced {
		t.Errorf("applied: %+v, synced: %t", r, st.Synced)
	}
}

// A file that is read again while the health is determined does not make the node ready before its
// changes are applied.
func TestReadyWhileFileIsRead(t *testing.T) {
	s := newTestSession(t, "nftables")
	s.rules.observer.report(reconcile.State{Known: true})
	s.faults.setInvalid("none", "too many open files", true)
	pending := s.health.Pending
	s.health.Pending = func() int {
		defer func() {
			s.input.store.Set(&snapshot.Service{Name: ir.Name{Namespace: "ns", Name: "web"}})
			s.faults.setInvalid("none", "", false)
		}()
		return pending()
	}
	if r := s.health.Ready(); r.Ready {
		t.Error("ready without the file's changes")
	}
}

// While the node's addresses cannot be read, it is not ready.
func TestUnreadableAddresses(t *testing.T) {
	s := newTestSession(t, "nftables")
	f := s.input.follower
	fails := errors.New("too many open files")
	f.interfaces = func() ([]compiler.Interface, error) { return []compiler.Interface{{Name: "eth0"}}, fails }
	f.Take(reconcile.Full)
	s.rules.observer.report(reconcile.State{Known: true})
	if r := s.health.Ready(); r.Ready || !strings.Contains(r.Reason, fails.Error()) {
		t.Errorf("%+v", r)
	}
	if len(f.again) == 0 {
		t.Error("they are not read again")
	}
	fails = nil
	record := f.retrying
	f.retrying = func(work string, err error) { // the log may block here
		record(work, err)
		if r := s.health.Ready(); r.Ready {
			t.Error("ready before the addresses are applied")
		}
	}
	f.Take(reconcile.Full)
	s.rules.observer.report(reconcile.State{Known: true})
	if r := s.health.Ready(); !r.Ready {
		t.Errorf("after success: %+v", r)
	}
}

// newTestSession returns a session that does not run.
func newTestSession(t *testing.T, mode string) *session {
	t.Helper()
	cfg := testConfig(ir.Mode(mode))
	s, err := newSession(t.Context(), &Options{Stdout: io.Discard, Stderr: io.Discard, SourceOptions: SourceOptions{Snapshot: []string{"none"}}}, &config.Resolved{Config: cfg, NodeName: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The boot file contains the last change before a stop, unless its commit failed.
func TestBootFileAfterStop(t *testing.T) {
	for _, err := range []error{nil, context.Canceled} {
		s := newTestSession(t, "nftables")
		boot := newBootFile(t, &diskFiles{})
		s.rules.effects.boot = boot
		boot.beginCommit()
		s.rules.synced(&reconcile.Sync{Kind: reconcile.Change, Err: err, Incomplete: true})
		boot.write(func() ir.Programs {
			return ir.NewPrograms(&ir.Program{Family: ir.IPv4}, &ir.Program{Family: ir.IPv6})
		})
		if boot.isCurrent() != (err == nil) {
			t.Errorf("commit %v: current %t", err, boot.isCurrent())
		}
	}
}

// A commit that could not remove all stale objects counts once.
func TestCleanupFailures(t *testing.T) {
	s := newTestSession(t, "nftables")
	programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4}, &ir.Program{Family: ir.IPv6})
	s.rules.synced(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}, Done: reconcile.Done{Commits: []reconcile.Commit{{Result: apply.Result{Pending: ir.PerFamily[int]{IPv4: 3}}}}}})
	page := httptest.NewRecorder()
	s.servers.metricsServer().Handler.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for family, want := range map[string]string{"IPv4": "1", "IPv6": "0"} {
		if line := `kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="` + family + `"} ` + want + "\n"; !strings.Contains(page.Body.String(), line) {
			t.Errorf("%s: no line %q", family, line)
		}
	}
}

// The metrics contain every feature gate with its value.
func TestFeatureMetrics(t *testing.T) {
	cfg := config.Default()
	cfg.FeatureGates = map[string]bool{"AllAlpha": true, "ContextualLogging": false}
	config.Complete(cfg)
	w := httptest.NewRecorder()
	newMetrics(cfg, "v1").Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	lines := map[string]bool{}
	for line := range strings.Lines(w.Body.String()) {
		if gate, ok := strings.CutPrefix(line, "kubernetes_feature_enabled"); ok {
			gate, value, _ := strings.Cut(strings.TrimSpace(gate), " ")
			lines[gate] = value == "1"
		}
	}
	for line, on := range map[string]bool{
		`{name="ContextualLogging",stage="BETA"}`: false, `{name="LoggingAlphaOptions",stage="ALPHA"}`: true, `{name="ComponentFlagz",stage="BETA"}`: true,
		`{name="NFTablesProxyMode",stage=""}`: true, `{name="AllBeta",stage="BETA"}`: false, `{name="KubeProxyNFTablesLocalhostNodePorts",stage="ALPHA"}`: true,
	} {
		if got, ok := lines[line]; !ok || got != on {
			t.Errorf("%s is %t (there: %t), want %t", line, got, ok, on)
		}
	}
	if len(lines) < 240 {
		t.Errorf("only %d gates", len(lines))
	}
}

// When the daemon is ready or synced, stale flows are deleted.
func TestReadyWaitsForFlows(t *testing.T) {
	s := newTestSession(t, "nftables")
	frontend := ir.Frontend{Match: ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.UDP, Port: 53}}
	programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Services: []ir.Service{{Frontends: []ir.Frontend{frontend}}}}, &ir.Program{Family: ir.IPv6})
	s.rules.synced(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}})
	s.rules.observer.report(reconcile.State{Known: true})
	const want = "stale flows are being deleted"
	if r := s.health.Ready(); r.Ready || r.Reason != want {
		t.Errorf("before they were looked at: %+v", r)
	}
	s.Snapshot = nil // which need not be read
	if st := s.status.get(); st.Synced || st.Reason != want {
		t.Errorf("status: synced %v, %q", st.Synced, st.Reason)
	}
	var st status.Status
	if s.rules.observer.progress.report(&st); !st.Synced {
		t.Error("the rules themselves are not synced")
	}
}

// Work after a sync that fails and is retried is reported until it succeeds: in status, metrics,
// and once in the log. The rules are applied nevertheless.
func TestRetriesAreTold(t *testing.T) {
	var log strings.Builder
	cfg := testConfig(ir.ModeNFTables)
	s, err := newSession(t.Context(), &Options{Stdout: io.Discard, Stderr: &log, SourceOptions: SourceOptions{Snapshot: []string{"none"}}}, &config.Resolved{Config: cfg, NodeName: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	s.rules.effects.cleaned(conntrack.Cleaned{Family: ir.IPv4, Err: errors.New("no buffer space")})
	s.rules.effects.cleaned(conntrack.Cleaned{Family: ir.IPv4, Err: errors.New("no buffer space")})
	s.rules.effects.cleaned(conntrack.Cleaned{Family: ir.IPv6})
	busy := apply.Leftover{Object: "table ip kube-proxy", Remove: func(context.Context) error { return errors.New("busy") }}
	if _, err := s.rules.takeover.Remove(t.Context(), []apply.Leftover{busy}, nil); err == nil {
		t.Error("a leftover that stays is no error")
	}
	retrying := s.status.get().Retrying
	want := []string{"stale IPv4 flows: no buffer space", "what other proxies left: table ip kube-proxy: busy"}
	if len(retrying) != 2 || retrying[0].What+": "+retrying[0].Error != want[0] || retrying[1].What+": "+retrying[1].Error != want[1] {
		t.Errorf("status has %+v, want %q", retrying, want)
	}
	page := httptest.NewRecorder()
	s.servers.metricsServer().Handler.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{`proxyc_conntrack_failures_total{ip_family="IPv4"} 2`, `proxyc_conntrack_failures_total{ip_family="IPv6"} 0`, "proxyc_leftover_failures_total 1"} {
		if !strings.Contains(page.Body.String(), line+"\n") {
			t.Errorf("metrics: no line %q", line)
		}
	}
	s.rules.effects.cleaned(conntrack.Cleaned{Family: ir.IPv4, Deleted: 1})
	if retrying = s.status.get().Retrying; len(retrying) != 1 {
		t.Errorf("afterwards status has %+v", retrying)
	}
	s.log.Flush()
	if n := strings.Count(log.String(), "no buffer space"); n != 1 || !strings.Contains(log.String(), "stale IPv4 flows succeeded after failures") {
		t.Errorf("%d errors, log:\n%s", n, log.String())
	}
}

// A start sends events with the reasons that alerts match.
func TestStartEvents(t *testing.T) {
	for _, tt := range []struct {
		config string
		want   []string
	}{
		{"mode: nftables", []string{"Normal Starting"}},
		{"", []string{"Normal Starting", "Warning KubeProxyDefaultMode"}},
		{"mode: ipvs", []string{"Normal Starting", "Warning IPVSDeprecation"}},
	} {
		file := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + tt.config + "\n"
		r, diags := config.Load("c.yaml", []byte(file), true)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		var got []string
		for _, e := range startEvents(r) {
			kind := "Normal"
			if e.Warning {
				kind = "Warning"
			}
			if e.Action != "StartKubeProxy" || e.Warning != (e.Note != "") {
				t.Errorf("%+v", e)
			}
			got = append(got, kind+" "+e.Reason)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.config, diff)
		}
	}
}

// The latency of a change is measured when it is applied. It is not measured at a start, or while
// its Service is rejected. The trigger time counts only if it is after the start of the process.
func TestChangesAreTimed(t *testing.T) {
	s := newTestSession(t, "nftables")
	programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4}, &ir.Program{Family: ir.IPv6})
	web, bad := ir.Name{Namespace: "ns", Name: "web"}, ir.Name{Namespace: "ns", Name: "bad"}
	now := s.rules.observer.counters.began.Add(time.Minute)
	sync := func(refused []apply.Refusal, err error) {
		s.input.follower.addWaiting(watch.Changes{ServiceEvents: 3, Arrivals: []watch.Arrival{{Service: web, At: now.Add(-3 * time.Second)},
			{Service: web, At: now.Add(-3 * time.Second), Triggered: now.Add(-7 * time.Second)}, {Service: bad, At: now.Add(-time.Hour), Triggered: s.rules.observer.counters.began.Add(-time.Hour)}}})
		s.rules.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now, Work: reconcile.Work{Programs: programs}, Err: err, Done: reconcile.Done{Refused: refused}})
	}
	sync(nil, nil)
	sync([]apply.Refusal{{Service: bad, Reason: errors.New("no")}}, nil)
	page := httptest.NewRecorder()
	s.servers.metricsServer().Handler.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`_count{since="arrival"} 2`, `_sum{since="arrival"} 6`, `_count{since="trigger"} 1`, `_sum{since="trigger"} 7`} {
		if !strings.Contains(page.Body.String(), "proxyc_change_to_packet_seconds"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	sync(nil, errors.New("the kernel said no"))
	sync(nil, nil)
	page = httptest.NewRecorder()
	s.servers.metricsServer().Handler.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	if want := `proxyc_change_to_packet_seconds_count{since="arrival"} 8` + "\n"; !strings.Contains(page.Body.String(), want) {
		t.Errorf("after a sync that failed, and one that did not: metrics lack %s", want)
	}
}

// A session that ends writes no rules, even if all objects exist.
func TestWaitEnds(t *testing.T) {
	s := newTestSession(t, "nftables")
	objects := make(chan struct{})
	close(objects)
	s.input.first.objects = objects
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if s.input.wait(ctx) {
			t.Fatal("the wait succeeded after the end")
		}
	}
}

package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// printed returns the text of a Status, and whether it is well.
func printed(t *testing.T, st status.Status) (well bool, out string) {
	t.Helper()
	if st.Started.IsZero() {
		st.Version, st.PID, st.Started = "v1.2.3", 4711, st.Now.Add(-time.Hour)
	}
	var b bytes.Buffer
	if err := st.Print(&b); err != nil {
		t.Fatal(err)
	}
	return st.Healthy(), b.String()
}

// testStatus is a status of parts that do not run.
type testStatus struct {
	*progress
	*faults
	*findings
	drift   drift
	foreign status.Foreign
	collector
}

func newTestStatus(mode ir.Mode, now func() time.Time) *testStatus {
	st := &testStatus{progress: &progress{}, faults: &faults{now: now, log: slog.New(slog.DiscardHandler)}, findings: newFindings(slog.New(slog.DiscardHandler), now, nil),
		collector: collector{process: status.Process{Node: "node1", Mode: mode}, now: now}}
	st.drift.now = now
	st.parts = []func(*status.Status){st.progress.report, st.drift.report, st.faults.report, st.findings.report, func(s *status.Status) { s.Easing, s.KubeProxy = st.foreign.Easing, st.foreign.KubeProxy }}
	return st
}

// synced records a successful sync.
func (s *testStatus) synced(sync *reconcile.Sync) {
	s.drift.add(sync)
	s.add(sync)
}

// reported returns the Status with a number of pending changes.
func (s *testStatus) reported(pending int) status.Status {
	with := s.collector
	with.parts = append([]func(*status.Status){func(st *status.Status) { st.Pending = pending }}, s.parts...)
	return with.get()
}

// The status contains the draining backends, and since when this process knows.
func TestStatusOfDrains(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeIPVS, func() time.Time { return at })
	drain := apply.Drain{
		Service: ir.Name{Namespace: "ns", Name: "web"}, Since: at.Add(-time.Minute), Connections: 3,
		Frontend: ir.Match{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: ir.TCP, Port: 80}, Backend: netip.MustParseAddrPort("10.244.0.1:8080"),
	}
	older := drain
	older.Service = ir.Name{} // started by an earlier process
	st.setCounters(apply.Counters{Draining: func() []apply.Drain { return []apply.Drain{drain, older} }})
	_, got := printed(t, st.reported(0))
	for _, want := range []string{
		"draining     Service ns/web: 10.96.0.1:80/tcp -> 10.244.0.1:8080, for 1m0s: 3 connections\n",
		"draining     10.96.0.1:80/tcp -> 10.244.0.1:8080, for 1m0s: 3 connections\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
}

// Leftovers of an earlier mode are reported while connections use them. The status is well
// meanwhile.
func TestStatusOfEasing(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeNFTables, func() time.Time { return at })
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: at})
	st.setSynced(true)
	st.foreign.Easing = &status.Easing{Since: at.Add(-time.Minute), Until: at.Add(59 * time.Minute), Kept: []status.Kept{{Object: "virtual server 10.96.0.1:80/tcp", Connections: 3}, {Object: "ipset KUBE-LOOP-BACK", Connections: 3}}}
	well, got := printed(t, st.reported(0))
	const want = `kept         virtual server 10.96.0.1:80/tcp, for 1m0s until its connections end: 3
kept         ipset KUBE-LOOP-BACK, for 1m0s until its connections end: 3
             the rest is removed at 2026-01-02T04:03:05Z, in 59m0s
`
	if !well || !strings.Contains(got, want) {
		t.Errorf("well: %t, want %q in\n%s", well, want, got)
	}
	st.foreign.Easing = nil
	if _, got := printed(t, st.reported(0)); strings.Contains(got, "kept") {
		t.Errorf("after its end:\n%s", got)
	}
}

func TestStatus(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeNFTables, func() time.Time { return at.Add(10 * time.Second) })
	check := func(pending int, want string) {
		t.Helper()
		well, got := printed(t, st.reported(pending))
		if diff := cmp.Diff(want, got); diff != "" || well {
			t.Errorf("well: %t, output (-want +got):\n%s", well, diff)
		}
	}
	check(3, `node         node1
mode         nftables
version      v1.2.3, process 4711, up 1h0m0s
synced       no
in force     nothing yet by this process: foreign changes of existing rules are not repaired
generation   0
pending      3
objects      0 Services, 0 EndpointSlices, 0 Nodes
`)
	name := ir.Name{Namespace: "ns", Name: "web"}
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: at, Done: reconcile.Done{
		Operations: apply.Count{Added: 1}, Drift: apply.Count{Removed: 1},
		DriftFirst: []apply.Operation{{Verb: apply.Remove, Object: "chain x", Have: []string{"drop"}, Want: []string{"accept"}}},
		Refused:    []apply.Refusal{{Service: name, Reason: errors.New("too long")}},
	}})
	st.setSynced(true)
	st.synced(&reconcile.Sync{Kind: reconcile.Change, Ended: at, Err: errors.New("busy")})
	st.setSynced(false)
	st.setRead(nil, []*snapshot.Invalid{{Object: "Service ns/old", Why: "spec: bad"}})
	st.setRead(nil, []*snapshot.Invalid{{Object: "Node node1", Why: "spec: bad"}, {Object: "Service ns/a", Why: "spec: bad"}})
	st.setRetrying("stale IPv4 flows", errors.New("no buffer space"))
	st.setRetrying("what other proxies left", errors.New("busy"))
	st.setRetrying("what other proxies left", nil)
	check(0, `node         node1
mode         nftables
version      v1.2.3, process 4711, up 1h0m0s
synced       no
generation   1
pending      0
objects      0 Services, 0 EndpointSlices, 0 Nodes
last sync    2026-01-02T03:04:05Z, full: 1 added, 0 changed, 0 removed
refused      Service ns/web: too long
retrying     stale IPv4 flows, since 0s ago: no buffer space
invalid      Node node1: spec: bad
invalid      Service ns/a: spec: bad
last error   2026-01-02T03:04:05Z, 10s ago: busy
last drift   2026-01-02T03:04:05Z: 0 added, 0 changed, 1 removed
             remove chain x
               have: drop
               want: accept
`)
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: at})
	st.setSynced(true)
	st.setRead(nil, nil)
	if well, got := printed(t, st.reported(0)); !well || !strings.Contains(got, "synced       yes") || strings.Contains(got, "refused") || strings.Contains(got, "invalid") {
		t.Errorf("after all is well:\n%s", got)
	}
	if well, got := printed(t, st.reported(1)); well || !strings.Contains(got, "synced       no") {
		t.Errorf("while a change waits:\n%s", got)
	}
	st.setSynced(false)
	if _, got := printed(t, st.reported(0)); !strings.Contains(got, "synced       no") {
		t.Errorf("while a sync waits:\n%s", got)
	}
}

// A server that does not serve is reported, with what still works.
func TestStatusDown(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeNFTables, func() time.Time { return now })
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now})
	st.setSynced(true)
	taken := errors.New("listen tcp :10256: bind: address already in use")
	st.setDown("healthz server", "0.0.0.0:10256", taken)
	now = now.Add(7 * time.Second)
	st.setDown("metrics server", "127.0.0.1:10249", taken)
	st.setDown("healthz server", "0.0.0.0:10256", taken)
	st.setDown("metrics server", "127.0.0.1:10249", nil)
	const want = "not served   healthz server at 0.0.0.0:10256, since 7s ago: listen tcp :10256: bind: address already in use; rules are still updated\n"
	if well, got := printed(t, st.reported(0)); well || !strings.Contains(got, want) || !strings.Contains(got, "synced       yes") || strings.Contains(got, "metrics server") {
		t.Errorf("well: %t, want %q in\n%s", well, want, got)
	}
	st.setDown("healthz server", "0.0.0.0:10256", nil)
	if well, got := printed(t, st.reported(0)); !well || strings.Contains(got, "not served") {
		t.Errorf("well: %t, after it serves:\n%s", well, got)
	}
}

// A daemon without contact is not well.
func TestStatusCutOff(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeNFTables, func() time.Time { return now })
	st.setInvalid("/etc/config.yaml", "config.yaml:3: mode: unknown", false)
	st.setInvalid("/etc/live.yaml", "is empty", false)
	now = now.Add(time.Minute)
	st.setInvalid("/etc/config.yaml", "config.yaml:4: mode: unknown", false)
	st.setInvalid("/etc/live.yaml", "", false)
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now})
	st.setSynced(true)
	reported := st.reported(0)
	reported.Objects = status.Objects{Services: 3, EndpointSlices: 4, Nodes: 1}
	reported.APIServer = &status.APIServer{Server: "https://192.0.2.1:6443", Resources: []watch.ResourceState{
		{Resource: "nodes", Last: now.Add(-40 * time.Second)}, {Resource: "services"}}}
	reported.Config = &status.File{Path: "/etc/config.yaml", Modified: now.Add(-time.Hour)}
	reported.BootFile = &status.File{Path: "/var/boot.json"}
	const want = `node         node1
mode         nftables
version      v1.2.3, process 4711, up 1h0m0s
synced       yes
generation   1
pending      0
objects      3 Services, 4 EndpointSlices, 1 Nodes
API server   https://192.0.2.1:6443
heard        nodes 40s ago, services never
config       /etc/config.yaml of 2026-01-02T02:05:05Z
boot file    /var/boot.json, does not exist
invalid      the newest version of /etc/config.yaml, 0s ago: config.yaml:4: mode: unknown
             and earlier ones, since 1m0s ago
last sync    2026-01-02T03:05:05Z, full: 0 added, 0 changed, 0 removed
`
	well, got := printed(t, reported)
	if diff := cmp.Diff(want, got); diff != "" || well {
		t.Errorf("well: %t (-want +got):\n%s", well, diff)
	}
	st.setInvalid("/etc/config.yaml", "", false)
	reported.InvalidFiles = nil
	if well, got := printed(t, reported); !well || strings.Contains(got, "invalid") {
		t.Errorf("well: %t, and nothing is invalid:\n%s", well, got)
	}
	reported.APIServer.Resources = append(reported.APIServer.Resources, watch.ResourceState{Resource: "servicecidrs", Optional: true, Lost: now.Add(-time.Minute), Cause: "no answer for 10s"})
	if well, got := printed(t, reported); well || !strings.Contains(got, "servicecidrs never (no answer for 10s)\n") {
		t.Errorf("well: %t, and ServiceCIDRs cannot be read:\n%s", well, got)
	}
	reported.APIServer.Lost, reported.APIServer.Cause, reported.APIServer.Fix = now.Add(-6*time.Minute), "services: connection refused", "check the address"
	reported.Reason = "no contact with API server https://192.0.2.1:6443 for 6m0s"
	well, got = printed(t, reported)
	for _, line := range []string{
		"synced       yes\nnot ready    no contact with API server https://192.0.2.1:6443 for 6m0s\n",
		"cut off      since 2026-01-02T02:59:05Z, 6m0s ago: services: connection refused\n             fix: check the address\n",
	} {
		if !strings.Contains(got, line) || well {
			t.Errorf("well: %t, want %q in\n%s", well, line, got)
		}
	}
}

// Reasons of several lines stay in their column.
func TestStatusLines(t *testing.T) {
	st := newTestStatus(ir.ModeUserspace, time.Now)
	reported := st.reported(0)
	reported.InsteadOf, reported.InsteadOfReason = ir.ModeIPVS, "no ip_vs\nno iptables"
	want := "mode         userspace, instead of ipvs: no ip_vs\n             no iptables\nversion "
	if _, got := printed(t, reported); !strings.Contains(got, want) {
		t.Errorf("want %q in\n%s", want, got)
	}
}

// The newest rejection has its own age besides that of the first. A boot file that is not current,
// or rules of kube-proxy, are not well.
func TestStatusTroubles(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeNFTables, func() time.Time { return now })
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now, Done: reconcile.Done{Operations: apply.Count{Removed: 12}}})
	st.setSynced(true)
	now = now.Add(time.Minute)
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now})
	st.setSynced(true)
	want := "last sync    2026-01-02T03:05:05Z, full: 0 added, 0 changed, 0 removed\nlast change  2026-01-02T03:04:05Z, full: 0 added, 0 changed, 12 removed\n"
	if well, got := printed(t, st.reported(0)); !well || !strings.Contains(got, want) {
		t.Errorf("well: %t, want %q in:\n%s", well, want, got)
	}
	st.setInvalid("s.yaml", "is cut off", false)
	now = now.Add(40 * time.Second)
	if _, got := printed(t, st.reported(0)); !strings.Contains(got, "invalid      the newest version of s.yaml, 40s ago: is cut off\n") || strings.Contains(got, "before it") {
		t.Errorf("one refusal:\n%s", got)
	}
	st.setInvalid("s.yaml", "is empty", false)
	now = now.Add(2 * time.Second)
	if _, got := printed(t, st.reported(0)); !strings.Contains(got, "invalid      the newest version of s.yaml, 2s ago: is empty\n             and earlier ones, since 42s ago\n") {
		t.Errorf("two refusals:\n%s", got)
	}
	st.setInvalid("s.yaml", "", false)
	reported := st.reported(0)
	reported.BootFile = &status.File{Path: "boot", Error: "no space left on device"}
	if well, _ := printed(t, reported); well {
		t.Error("well, although the boot file cannot be written")
	}
	st.foreign.KubeProxy = &status.KubeProxy{State: status.Removed, Since: now}
	if well, _ := printed(t, st.reported(0)); !well {
		t.Error("not well, although what kube-proxy left was removed")
	}
	for _, of := range []status.KubeProxyState{status.Maintained, status.LeftOver} {
		st.foreign.KubeProxy = &status.KubeProxy{State: of, Since: now}
		if well, _ := printed(t, st.reported(0)); well {
			t.Errorf("well, although kube-proxy's rules are %s", of)
		}
	}
}

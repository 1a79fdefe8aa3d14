package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
)

// watchConfig leaves the settings of the machine alone, and syncs at once.
const watchConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 0s, localhostNodePorts: false}
nftables: {minSyncPeriod: 0s}
logging: {verbosity: 4}
`

// watched is a daemon in a network namespace of its own.
type watched struct {
	t     *testing.T
	ns    *applytest.Namespace
	dir   string
	args  []string
	env   []string // beside that of the test
	plane watchedPlane

	process *os.Process
	started time.Time // the process
	wait    func() error
	log     *applytest.Buffer
	cwd     string    // the daemon's; empty: the test's
	record  *recorder // of the system calls in a container
}

// A watchedPlane is a way in which a daemon can write rules, with the command that
// lists what packets meet first, and what takes some away.
type watchedPlane struct {
	mode, variant string
	list          []string
	flushes       []flush
}

// A flush is a command that takes away something of the daemon's.
type flush struct {
	command string
	late    bool // no notification from the kernel: found by comparison
}

// dataplanes are those that every kernel has, and ipvs.
var dataplanes = map[string]watchedPlane{
	"nftables":        {"nftables", "", []string{"nft", "list", "ruleset"}, []flush{{"nft flush ruleset", false}}},
	"iptables-nft":    {"iptables", "nft", []string{"iptables-nft-save"}, []flush{{"iptables-nft -t nat -F", false}}},
	"iptables-legacy": {"iptables", "legacy", []string{"iptables-legacy-save"}, []flush{{"iptables-legacy -t nat -F", false}}},
	"ipvs": {"ipvs", "nft", []string{"ip", "-o", "addr"}, []flush{
		{"ip link del " + ir.IPVSDevice, false},
		{"ip addr del 10.96.0.97/32 dev " + ir.IPVSDevice, false},
		{"iptables-nft -t nat -F", false},
		{"ipvsadm -C; ipset flush KUBE-CLUSTER-IP", true},
	}},
}

func newWatched(t *testing.T, dataplane string) *watched {
	t.Helper()
	ns := applytest.RequireNamespace(t)
	plane := dataplanes[dataplane]
	w := &watched{t: t, ns: ns, dir: t.TempDir(), plane: plane, log: &applytest.Buffer{}}
	w.args = []string{"-c", w.file("config"), "-s", w.file("cluster.yaml"), "--hostname-override", "node1"}
	if plane.variant != "" {
		w.args = append(w.args, "--iptables-variant="+plane.variant)
	}
	w.write("config", fmt.Sprintf(watchConfig, plane.mode))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("log of the daemon:\n" + w.log.String())
		}
	})
	return w
}

func (w *watched) file(name string) string { return filepath.Join(w.dir, name) }

// write replaces a file in one step.
func (w *watched) write(name, text string) {
	w.t.Helper()
	temp := w.file(name + ".next")
	must(w.t, os.WriteFile(temp, []byte(text), 0o644))
	must(w.t, os.Rename(temp, w.file(name)))
}

// start starts the daemon under a name.
func (w *watched) start(name string, args ...string) {
	w.t.Helper()
	cmd := w.ns.Command(context.Background(), name, append(args, w.args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = w.log, w.log, w.cwd
	// A program with the race detector otherwise sleeps for a second before it ends.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), w.env...)
	began := time.Now()
	wait, err := w.ns.Start(cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	w.process, w.started = cmd.Process, began
	w.wait = sync.OnceValue(wait)
	w.t.Cleanup(func() { w.process.Kill(); w.wait() })
}

// sync starts the daemon with a snapshot, and waits for the first sync.
func (w *watched) sync(cluster string) {
	w.t.Helper()
	w.write("cluster.yaml", cluster)
	w.start("proxyc", "watch")
	w.until("first sync", synced)
}

// saveBootFile runs the daemon until its boot file contains Service ns/a.
func (w *watched) saveBootFile() {
	w.t.Helper()
	w.args = append(w.args, "--boot-from", w.file("boot"))
	w.sync(applytest.Services("a"))
	w.stop(syscall.SIGTERM)
}

// stop ends the daemon, and returns how long that took.
func (w *watched) stop(signal os.Signal) time.Duration {
	w.t.Helper()
	began := time.Now()
	w.process.Signal(signal)
	err := w.wait()
	if signal == syscall.SIGTERM && err != nil {
		w.t.Errorf("the daemon ended with %v", err)
	}
	return time.Since(began)
}

// until waits for a status that satisfies holds.
func (w *watched) until(what string, holds func(status.Status) bool) status.Status {
	w.t.Helper()
	return within(w, 20*time.Second, what, func() (status.Status, bool) {
		st, ok := w.status()
		return st, ok && holds(st)
	})
}

// status asks the daemon once; it may not be there yet.
func (w *watched) status() (st status.Status, ok bool) {
	code, body, err := w.get(metricsPort, status.StatusPath)
	return st, err == nil && code == http.StatusOK && json.Unmarshal([]byte(body), &st) == nil
}

// within tries until a condition holds, and fails the test after a time, which is at least half a
// minute, since machines are busy. Between tries it waits longer and longer: many of them run programs.
func within[T any](w *watched, limit time.Duration, what string, try func() (T, bool)) T {
	w.t.Helper()
	limit = applytest.ScaledTimeout(max(limit, 30*time.Second))
	deadline := time.After(limit)
	for pause := 20 * time.Millisecond; ; pause = min(pause*3/2, 500*time.Millisecond) {
		if v, ok := try(); ok {
			return v
		}
		select {
		case <-deadline:
			w.t.Fatalf("%s: not within %s", what, limit)
		case <-time.After(pause):
		}
	}
}

func synced(st status.Status) bool { return st.Synced && st.Pending == 0 }

func (w *watched) rules() string {
	w.t.Helper()
	out, err := w.ns.Run(w.ns.Command(context.Background(), w.plane.list[0], w.plane.list[1:]...))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(out)
}

// has reports whether the rules have a Service of watchCluster.
func (w *watched) has(name string) bool {
	return strings.Contains(w.rules(), fmt.Sprintf("10.96.0.%d", name[0]))
}

// holds waits until the rules have a Service, or do not.
func (w *watched) holds(limit time.Duration, name string, want bool) {
	w.t.Helper()
	within(w, limit, fmt.Sprintf("Service %s in the rules: %t", name, want), func() (struct{}, bool) { return struct{}{}, w.has(name) == want })
}

// eachDataplane runs a test on each that the kernel has.
func eachDataplane(t *testing.T, test func(t *testing.T, w *watched)) {
	ipvs := applytest.HaveIPVS(t)
	for name, plane := range dataplanes {
		if plane.mode == "ipvs" && !ipvs {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWatched(t, name))
		})
	}
}

func TestWatchFollows(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.sync(applytest.Services("a"))
		w.holds(time.Second, "a", true)
		w.write("cluster.yaml", applytest.Services("b"))
		w.holds(5*time.Second, "b", true)
		w.holds(time.Second, "a", false)
		st := w.until("the second sync", func(st status.Status) bool { return st.Generation > 1 })
		if st.LastKind != "change" {
			t.Errorf("a change of Services led to a sync of kind %s", st.LastKind)
		}
	})
}

// Files are followed under bare names, too.
func TestWatchBareNames(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.cwd = w.dir
	w.args = []string{"-c", "config", "-s", "cluster.yaml", "--hostname-override", "node1"}
	w.sync(applytest.Services("a"))
	w.write("cluster.yaml", applytest.Services("b"))
	w.holds(5*time.Second, "b", true)
	w.write("config", fmt.Sprintf(watchConfig, "iptables"))
	w.until("the new mode", func(st status.Status) bool { return st.Mode == "iptables" && synced(st) })
}

// kubectl get > FILE removes no Service: the file is empty first, and stays empty if kubectl fails.
func TestWatchSnapshotRewritten(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.sync(applytest.Services("a"))
	file, err := os.Create(w.file("cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(n int) {
		t.Helper()
		within(w, 20*time.Second, "the file is refused", func() (struct{}, bool) {
			return struct{}{}, strings.Count(w.log.String(), "the snapshot is invalid: the current objects are kept") == n
		})
		if !w.has("a") {
			t.Error("the Service is gone")
		}
	}
	file.Close()
	refused(1)
	whole := applytest.Services("a", "b")
	must(t, os.WriteFile(w.file("cluster.yaml"), []byte(whole[:len(whole)-20]), 0o644))
	refused(2)
	must(t, os.WriteFile(w.file("cluster.yaml"), []byte(whole), 0o644))
	w.holds(5*time.Second, "b", true)
	if !w.has("a") {
		t.Error("the Service is gone")
	}
	w.write("cluster.yaml", whole[:strings.Index(whole, "kind: Service\nmetadata: {name: b")-len("apiVersion: v1\n")])
	w.holds(5*time.Second, "b", false)
	if want := `"Services are no longer in the snapshot: their rules are removed" removed=1 services="ns/b"`; !strings.Contains(w.log.String(), want) {
		t.Errorf("a cut between two documents: not logged: %s", want)
	}
	w.write("cluster.yaml", "")
	refused(3)
	w.stop(syscall.SIGTERM)
	w.args = append(w.args, "--allow-empty")
	w.start("proxyc", "watch")
	w.holds(20*time.Second, "a", false)
}

// The last good version of an object stays in force while the one in the file has an error.
func TestWatchKeepsInvalidObject(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	whole := applytest.Services("a", "b")
	w.sync(whole)
	w.write("cluster.yaml", strings.Replace(whole, "ports: [{port: 80}]", "ports: [{port: many}]", 1)+applytest.Services("c"))
	w.holds(20*time.Second, "c", true)
	st := w.until("the object is reported", func(st status.Status) bool { return len(st.Invalid) > 0 })
	if b := st.Invalid[0]; len(st.Invalid) != 1 || b.Object != "Service ns/a" || !strings.Contains(b.Reason, "port") {
		t.Errorf("invalid: %+v, want Service ns/a for its port", st.Invalid)
	}
	if !w.has("a") || !w.has("b") {
		t.Error("a Service lost its rules")
	}
	for ignore, want := range map[string]int{"--ignore-findings=false": exitFindings, "--ignore-findings": 0} {
		if out, code := w.run("proxyc", "status", ignore); code != want || !strings.Contains(out, "Service ns/a") {
			t.Errorf("status %s exited %d, want %d and the object:\n%s", ignore, code, want, out)
		}
	}
	w.write("cluster.yaml", applytest.Services("b", "c"))
	w.holds(20*time.Second, "a", false)
	w.until("nothing is invalid", func(st status.Status) bool { return len(st.Invalid) == 0 })
}

// The status names every problem of a file: with its objects, and with those that have no name.
func TestWatchShowsFindingsOfFiles(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.sync(strings.Replace(applytest.Services("a", "b"), "ports: [{port: 80}]", "internalTrafficPolicy: Nope, ports: [{port: 80}]", 1) +
		applytest.Services("b") + strings.Replace(applytest.Services("c"), "name: c, ", "", 1))
	out, code := w.run("proxyc", "status")
	for _, want := range []string{
		"finding      warning: Service ns/a: spec.internalTrafficPolicy: must be Cluster or Local, got \"Nope\"",
		"finding      warning: Service ns/b: is a duplicate: it replaces the previous one",
		"invalid      Service: ",
	} {
		if !strings.Contains(out, "\n"+want) {
			t.Errorf("no row %q", want)
		}
	}
	if code != exitFindings || t.Failed() {
		t.Errorf("status exited %d, want %d:\n%s", code, exitFindings, out)
	}
	w.write("cluster.yaml", applytest.Services("a", "b"))
	w.until("nothing is found", func(st status.Status) bool { return st.Healthy() && st.FindingsTotal == 1 }) // the Node is not in the file
}

// A restart finds all in place, and the rules stay in between.
func TestWatchRestart(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.write("cluster.yaml", applytest.Services("a", "b"))
		for i, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
			w.start("proxyc", "watch")
			st := w.until("first sync", synced)
			if i > 0 && st.Operations != (apply.Count{}) {
				t.Errorf("start %d: %s, want nothing to do", i, st.Operations)
			}
			if took := w.stop(signal); took > applytest.StopTimeout {
				t.Errorf("the end took %s, want at most %s", took, applytest.StopTimeout)
			}
			if signal == syscall.SIGTERM && !strings.Contains(w.log.String(), "stopped: the rules ") {
				t.Error("the log does not state what happens to the rules")
			}
			if !w.has("a") || !w.has("b") {
				t.Fatal("the rules went with the daemon")
			}
		}
	})
}

func TestWatchRepairsDrift(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.sync(applytest.Services("a"))
		for _, f := range w.plane.flushes {
			before, _ := w.status()
			if _, err := w.ns.Run(w.ns.Command(t.Context(), "sh", "-c", f.command)); err != nil {
				t.Fatal(err)
			}
			limit := 20 * time.Second
			if f.late {
				limit = 80 * time.Second
			} else {
				w.holds(2*time.Second, "a", true)
			}
			within(w, limit, f.command+": the drift is reported", func() (struct{}, bool) {
				st, ok := w.status()
				return struct{}{}, ok && synced(st) && st.LastDrift != nil && (before.LastDrift == nil || st.LastDrift.At.After(before.LastDrift.At))
			})
			if out, err := w.ns.Run(w.ns.Command(t.Context(), "proxyc", append([]string{"apply", "--check"}, w.args...)...)); err != nil {
				t.Errorf("%s: not all is back: %v\n%s", f.command, err, out)
			}
		}
	})
}

// flush removes all rules of the node.
func (w *watched) flush() {
	w.t.Helper()
	if _, err := w.ns.Run(w.ns.Command(w.t.Context(), "nft", "flush", "ruleset")); err != nil {
		w.t.Fatal(err)
	}
}

// The boot file is in force while the source is silent.
func TestWatchBootFrom(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.saveBootFile()
	w.flush()
	w.withoutServer()
	w.start("proxyc", "watch")
	w.holds(5*time.Second, "a", true)
}

// A start that cannot read its input changes nothing on the node, like apply. With a boot file, it
// does not fail.
func TestWatchReadsFirst(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "nftables"), "tcpEstablishedTimeout: 0s", "tcpEstablishedTimeout: 1h", 1))
	timeout := func() (text string) {
		if err := w.ns.Do(func() error {
			data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")
			text = strings.TrimSpace(string(data))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before, empty := timeout(), w.rules()
	w.args = append(w.args, "--boot-from", w.file("boot"))
	w.start("proxyc", "watch")
	if err := w.wait(); err == nil || !strings.Contains(w.log.String(), "cluster.yaml: no such file") {
		t.Fatalf("without a snapshot: %v", err)
	}
	if now := timeout(); now != before || w.rules() != empty {
		t.Errorf("a start that failed left timeout %s, was %s, and the rules\n%s", now, before, w.rules())
	}
	w.sync(applytest.Services("a"))
	if now := timeout(); now != "3600" {
		t.Errorf("timeout %s, want 3600", now)
	}
	w.stop(syscall.SIGTERM) // the boot file is written
	must(t, os.Remove(w.file("cluster.yaml")))
	w.flush()
	w.start("proxyc", "watch")
	w.holds(5*time.Second, "a", true)
	w.until("the file is missed", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
	w.write("cluster.yaml", applytest.Services("b"))
	w.holds(5*time.Second, "b", true)
}

// withoutSnapshot makes the source an API server.
func (w *watched) withoutSnapshot() {
	at := slices.Index(w.args, "-s")
	w.args = slices.Delete(slices.Clone(w.args), at, at+2)
}

// withoutServer makes the source an API server that is not there, and returns the
// configuration.
func (w *watched) withoutServer() string {
	w.t.Helper()
	w.write("kubeconfig", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u}]}`)
	config := fmt.Sprintf(watchConfig, w.plane.mode) + "clientConnection: {kubeconfig: " + w.file("kubeconfig") + "}\n"
	w.write("config", config)
	w.withoutSnapshot()
	return config
}

// An API server that accepts connections and does not answer is named, long before it counts as lost.
func TestWatchSilentServer(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.withoutServer()
	if err := w.ns.Do(func() error {
		silent, err := net.Listen("tcp4", "127.0.0.1:1")
		if err == nil {
			t.Cleanup(func() { silent.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.start("proxyc", "watch")
	const server = "http://127.0.0.1:1"
	within(w, 20*time.Second, "/readyz names the server", func() (struct{}, bool) {
		_, body, _ := w.get(healthPort, "/readyz")
		return struct{}{}, strings.Contains(body, "from API server "+server)
	})
	within(w, 30*time.Second, "the warning", func() (struct{}, bool) {
		return struct{}{}, strings.Contains(w.log.String(), `"the API server does not answer: waiting" server="`+server+`" resource="`)
	})
	if n := strings.Count(w.log.String(), "the API server does not answer"); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
}

// A request to a missing server is reported as such.
func TestWatchDeadServer(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.withoutServer()
	w.start("proxyc", "watch", "--unready-after", "10ms")
	w.until("the loss of contact", func(st status.Status) bool { return st.APIServer != nil && !st.APIServer.Lost.IsZero() && !st.Synced })
	cmd := w.ns.Command(t.Context(), "proxyc", "status")
	out, _ := w.ns.Run(cmd)
	for _, want := range []string{"synced       no: waiting for the initial objects from API server http://127.0.0.1:1\n", "API server   http://127.0.0.1:1\n",
		"connect: connection refused\n", "services never", "config       " + w.file("config") + " of "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != exitFindings {
		t.Errorf("exit code %d, want %d", code, exitFindings)
	}
	warned := regexp.MustCompile(`(?m)^W\d{4} .*\] "contact with the API server is lost`)
	if n := len(warned.FindAllString(w.log.String(), -1)); n != 1 {
		t.Errorf("reported %d times", n)
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 503} {
		if code := w.ask(t, "127.0.0.1:10256", path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	within(w, 20*time.Second, "several tries, which are ever farther apart", func() (struct{}, bool) {
		return struct{}{}, strings.Count(w.log.String(), "watch-list failed - backing off") >= 6
	})
	w.stop(syscall.SIGTERM)
	if strings.Contains(w.log.String(), "stopping during a sync") {
		t.Error("it ends in the middle of a sync, though there was none")
	}
}

// ask asks the daemon on its node, and returns the code of the answer.
func (w *watched) ask(t *testing.T, at, path string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.ns.Dial(ctx, network, netip.AddrPort{}, netip.MustParseAddrPort(at))
	}}}
	resp, err := client.Get("http://" + at + path)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A valid new configuration restarts the daemon, in the same process and with the rules in place; one
// that is not valid changes nothing. Connections continue through the kernel's rules. No other daemon
// gets the lock meanwhile.
func TestWatchConfigChange(t *testing.T) {
	t.Parallel()
	w := newEcho(t)
	w.write("config", fmt.Sprintf(watchConfig, "nftables"))
	w.start("proxyc", "watch")
	first := w.until("first sync", synced)
	kept, err := w.reaches("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	other := &applytest.Buffer{}
	cmd := w.ns.Command(context.Background(), "proxyc", append([]string{"apply", "--lock-timeout", "1h"}, w.args...)...)
	cmd.Stderr = other
	wait, err := w.ns.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); wait() }()
	waits := fmt.Sprintf("held by process %d", first.PID)
	within(w, 10*time.Second, "another process waits", func() (struct{}, bool) { return struct{}{}, strings.Contains(other.String(), waits) })
	w.write("config", "nonsense: true\n")
	st := w.until("the error is reported", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
	if !synced(st) || !st.Started.Equal(first.Started) || !strings.Contains(w.log.String(), "the configuration file is invalid: the current configuration is kept") {
		t.Errorf("after an invalid file: %+v", st)
	}
	for _, mode := range []string{"nftables", "iptables", "nftables", "iptables"} {
		before, _ := w.status()
		config := fmt.Sprintf(watchConfig, mode)
		if mode == string(before.Mode) {
			config = strings.Replace(config, "verbosity: 4", "verbosity: 5", 1)
		}
		w.write("config", config)
		st := w.until("the new configuration", func(st status.Status) bool {
			return st.Started.After(before.Started) && string(st.Mode) == mode && synced(st) && len(st.InvalidFiles) == 0
		})
		if st.PID != first.PID {
			t.Errorf("mode %s: process %d became %d", mode, first.PID, st.PID)
		}
		if mode == string(before.Mode) && st.LastChange != nil {
			t.Errorf("the same rules: %s", st.LastChange.Operations)
		}
		if err := answers(kept); err != nil {
			t.Errorf("mode %s: the connection that there was: %v", mode, err)
		}
		if _, err := w.reaches("10.96.0.10:80"); err != nil {
			t.Errorf("mode %s: a new connection: %v", mode, err)
		}
		within(w, 10*time.Second, "the rules of the mode alone", func() (struct{}, bool) {
			_, err := w.ns.Run(w.ns.Command(t.Context(), "nft", "list", "table", "ip", "proxyc"))
			return struct{}{}, (err == nil) == (mode == "nftables")
		})
	}
	if cmd.ProcessState != nil || strings.Contains(other.String(), "proxyc: ") {
		t.Errorf("another process got the lock:\n%s", other)
	}
}

// A new configuration that is valid, but cannot be applied, leaves the rules as they are. It is tried
// again, and status and /readyz have the reason, until the file has one that can be applied. Health
// check node ports answer meanwhile, since load balancers otherwise send no traffic to the rules.
func TestWatchConfigNotInForce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct{ from, to, why string }{
		"a setting of the kernel": {"tcpEstablishedTimeout: 0s", "tcpEstablishedTimeout: 600000h", "conntrack.tcpEstablishedTimeout"},
		"a mode":                  {"mode: nftables", "mode: ipvs", "mode"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t, "nftables")
			w.args = append(w.args, "--boot-from", w.file("boot"))
			whole := fmt.Sprintf(watchConfig, "nftables") + "nodePortAddresses: [0.0.0.0/0]\n"
			w.write("config", whole)
			w.sync(applytest.Services("a") + "---\n" + nodePortYAML)
			before, _ := w.status()
			w.write("config", strings.Replace(whole, change.from, change.to, 1))
			reason := "the configuration cannot be applied, and is retried: "
			refused := func(after time.Time) func(status.Status) bool {
				return func(st status.Status) bool {
					return st.Started.After(after) && !st.Synced && strings.HasPrefix(st.Reason, reason) && strings.Contains(st.Reason, change.why)
				}
			}
			st := w.until("it is not applied", refused(before.Started))
			if st.PID != before.PID || len(st.Retrying) != 1 {
				t.Errorf("status %+v, before %+v", st, before)
			}
			w.readyz("it is not applied", http.StatusServiceUnavailable, change.why)
			within(w, 5*time.Second, "the health check answers", func() (struct{}, bool) {
				code, _, err := w.get(32000, "/healthz")
				return struct{}{}, err == nil && code == http.StatusOK
			})
			w.process.Signal(syscall.SIGHUP)
			st = w.until("another attempt, at once", refused(st.Started))
			within(w, 40*time.Second, "another attempt, later", func() (struct{}, bool) {
				now, ok := w.status()
				return struct{}{}, ok && refused(st.Started)(now)
			})
			if !w.has("a") {
				t.Errorf("the rules are gone:\n%s", w.rules())
			}
			w.write("config", "nonsense: true\n")
			st = w.until("an invalid file", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
			w.process.Signal(syscall.SIGHUP)
			w.until("another attempt, beside an invalid file", refused(st.Started))
			w.write("config", strings.Replace(whole, "10.244.0.0/16", "10.244.0.0/17", 1))
			w.until("the next one is in force", func(st status.Status) bool { return synced(st) && len(st.Retrying) == 0 })
			w.readyz("the next one is in force", http.StatusOK, "")
		})
	}
}

// Files that could not be read, because too many files were open, are read once that has gone,
// though they do not change again.
func TestWatchUnreadableFiles(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.sync(applytest.Services("a"))
	limit := unix.Rlimit{}
	must(t, unix.Prlimit(w.process.Pid, unix.RLIMIT_NOFILE, nil, &limit))
	must(t, unix.Prlimit(w.process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}, nil))
	w.write("cluster.yaml", applytest.Services("b"))
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "nftables"), "10.244.0.0/16", "10.244.0.0/17", 1))
	for _, what := range []string{"the configuration file", "the snapshot"} {
		within(w, 20*time.Second, what+" is unreadable, and the next attempt is 4 s later", func() (struct{}, bool) {
			return struct{}{}, strings.Count(w.log.String(), what+" is invalid: the current") == 3
		})
	}
	must(t, unix.Prlimit(w.process.Pid, unix.RLIMIT_NOFILE, &limit, nil))
	w.readyz("before they are read", http.StatusServiceUnavailable, "is retried: ")
	w.holds(20*time.Second, "b", true)
	w.until("the new configuration is in force", func(st status.Status) bool {
		return synced(st) && len(st.InvalidFiles) == 0 && strings.Contains(w.rules(), "10.244.0.0/17")
	})
}

// While the tools fail, a new configuration cannot be applied. The daemon tries again, and the
// configuration is in force once the tools work.
func TestWatchConfigWhileToolsFail(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	tool, err := exec.LookPath("iptables-nft-restore")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.file("iptables-nft-restore"), fmt.Appendf(nil, "#!/bin/sh\n[ ! -e %s ] || { echo 'broken, for a test' >&2; exit 1; }\nexec %s \"$@\"\n", w.file("broken"), tool), 0o755); err != nil {
		t.Fatal(err)
	}
	w.env = append(w.env, "PATH="+w.dir+":"+os.Getenv("PATH"))
	w.write("cluster.yaml", applytest.Services("a"))
	w.start("proxyc", "watch")
	before := w.until("first sync", synced)
	w.write("broken", "")
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "iptables"), "10.244.0.0/16", "10.244.0.0/17", 1))
	w.readyz("while the tools fail", http.StatusServiceUnavailable, "broken, for a test")
	w.readyz("while the tools fail", http.StatusServiceUnavailable, "the configuration cannot be applied, and is retried")
	within(w, 20*time.Second, "/livez is 200", func() (int, bool) { // each attempt has its own server
		code, _, err := w.get(healthPort, "/livez")
		if err == nil && code != http.StatusOK {
			t.Fatalf("/livez: %d, want 200", code)
		}
		return code, err == nil
	})
	if !w.has("a") {
		t.Errorf("rules are gone:\n%s", w.rules())
	}
	must(t, os.Remove(w.file("broken")))
	st := w.until("the new one is in force", func(st status.Status) bool { return synced(st) && st.Config.Modified.After(before.Config.Modified) })
	if st.PID != before.PID || len(st.InvalidFiles) > 0 || !strings.Contains(w.rules(), "10.244.0.0/17") {
		t.Errorf("status %+v, before %+v; rules:\n%s", st, before, w.rules())
	}
	w.readyz("the new one is in force", http.StatusOK, "")
}

// A change of configuration while the snapshot is invalid waits until that is valid: another program
// would not have the objects that this one keeps.
func TestWatchConfigChangeWithoutSnapshot(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.sync(applytest.Services("a"))
	w.write("cluster.yaml", "")
	first := w.until("the refusal", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "nftables"), "10.244.0.0/16", "10.244.0.0/17", 1))
	w.until("the new configuration waits", func(st status.Status) bool { return len(st.InvalidFiles) == 2 && st.Started.Equal(first.Started) })
	if !w.has("a") {
		t.Errorf("the rules are gone:\n%s", w.rules())
	}
	w.write("cluster.yaml", applytest.Services("b"))
	w.holds(5*time.Second, "b", true)
	w.holds(time.Second, "a", false)
	w.until("the new configuration", func(st status.Status) bool { return st.Started.After(first.Started) && synced(st) })
}

// Called as kube-proxy, it takes kube-proxy's arguments.
func TestWatchAsKubeProxy(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", applytest.Services("a"))
	w.start("kube-proxy")
	w.until("first sync", synced)
	w.holds(time.Second, "a", true)
}

const nodePortYAML = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4],
  ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.10], nodeName: node1}]
ports: [{port: 8080, name: ""}]
`

// ip runs ip on the node.
func (w *watched) ip(args string) {
	w.t.Helper()
	if out, err := w.ns.Run(w.ns.Command(w.t.Context(), "ip", strings.Fields(args)...)); err != nil {
		w.t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
}

// serve listens on the node as the endpoint of a pod would.
func (w *watched) serve(at string) {
	w.t.Helper()
	w.ip("link add pods type bridge")
	w.ip("addr add " + netip.MustParseAddrPort(at).Addr().String() + "/24 dev pods")
	w.ip("link set pods up")
	var listener net.Listener
	if err := w.ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { listener.Close() })
}

// Node ports and health checks answer on an address as soon as the node has it.
func TestWatchNodeAddress(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("config", fmt.Sprintf(watchConfig, "nftables")+"nodePortAddresses: [192.0.2.0/24]\n")
	w.write("cluster.yaml", nodePortYAML)
	w.serve("10.244.1.10:8080")
	answers := func(port uint16) bool {
		conn, err := w.ns.Dial(t.Context(), "tcp", netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.11"), port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	w.start("proxyc", "watch")
	st := w.until("first sync", synced)
	for _, step := range []struct {
		change string
		want   bool
	}{{"add", true}, {"del", false}, {"add", true}} {
		w.ip("addr " + step.change + " 192.0.2.11/24 dev pods")
		for _, port := range []uint16{32000, 30080} {
			within(w, 5*time.Second, fmt.Sprintf("port %d after %s: answers: %t", port, step.change, step.want), func() (struct{}, bool) {
				return struct{}{}, answers(port) == step.want
			})
		}
	}
	if now := w.until("the changes are taken", synced); now.Generation < st.Generation+1 {
		t.Errorf("generation %d after %d: no sync took the addresses", now.Generation, st.Generation)
	}
}

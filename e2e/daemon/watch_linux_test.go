package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// saveBootFile runs the daemon until its boot file contains Service ns/a.
func (w *watched) saveBootFile() {
	w.T.Helper()
	w.Args = append(w.Args, "--boot-from", w.File("boot"))
	w.Sync(applytest.Services("a"))
	w.Stop(syscall.SIGTERM)
}

func TestWatchFollows(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.Sync(applytest.Services("a"))
		w.Holds(time.Second, "a", true)
		w.Write("cluster.yaml", applytest.Services("b"))
		w.Holds(5*time.Second, "b", true)
		w.Holds(time.Second, "a", false)
		st := w.Until("the second sync", func(st status.Status) bool { return st.Generation > 1 })
		if st.LastKind != "change" {
			t.Errorf("a change of Services led to a sync of kind %s", st.LastKind)
		}
	})
}

// Files are followed under bare names, too.
func TestWatchBareNames(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.CWD = w.Dir
	w.Args = []string{"-c", "config", "-s", "cluster.yaml", "--hostname-override", "node1"}
	w.Sync(applytest.Services("a"))
	w.Write("cluster.yaml", applytest.Services("b"))
	w.Holds(5*time.Second, "b", true)
	w.Write("config", fmt.Sprintf(nodetest.Config, "iptables"))
	w.Until("the new mode", func(st status.Status) bool { return st.Mode == "iptables" && nodetest.Synced(st) })
}

// kubectl get > FILE removes no Service: the file is empty first, and stays empty if kubectl fails.
func TestWatchSnapshotRewritten(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(applytest.Services("a"))
	file, err := os.Create(w.File("cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(n int) {
		t.Helper()
		applytest.Until(w.T, 20*time.Second, "the file is refused", func() bool {
			return strings.Count(w.Log.String(), "the snapshot is invalid: the current objects are kept") == n
		})
		if !w.Has("a") {
			t.Error("the Service is gone")
		}
	}
	file.Close()
	refused(1)
	whole := applytest.Services("a", "b")
	must(t, os.WriteFile(w.File("cluster.yaml"), []byte(whole[:len(whole)-20]), 0o644))
	refused(2)
	must(t, os.WriteFile(w.File("cluster.yaml"), []byte(whole), 0o644))
	w.Holds(5*time.Second, "b", true)
	if !w.Has("a") {
		t.Error("the Service is gone")
	}
	w.Write("cluster.yaml", whole[:strings.Index(whole, "kind: Service\nmetadata: {name: b")-len("apiVersion: v1\n")])
	w.Holds(5*time.Second, "b", false)
	if want := `"Services are no longer in the snapshot: their rules are removed" removed=1 services="ns/b"`; !strings.Contains(w.Log.String(), want) {
		t.Errorf("a cut between two documents: not logged: %s", want)
	}
	w.Write("cluster.yaml", "")
	refused(3)
	w.Stop(syscall.SIGTERM)
	w.Args = append(w.Args, "--allow-empty")
	w.Start("proxyc", "watch")
	w.Holds(20*time.Second, "a", false)
}

// The last good version of an object stays in force while the one in the file has an error.
func TestWatchKeepsInvalidObject(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	whole := applytest.Services("a", "b")
	w.Sync(whole)
	w.Write("cluster.yaml", strings.Replace(whole, "ports: [{port: 80}]", "ports: [{port: many}]", 1)+applytest.Services("c"))
	w.Holds(20*time.Second, "c", true)
	st := w.Until("the object is reported", func(st status.Status) bool { return len(st.Invalid) > 0 })
	if b := st.Invalid[0]; len(st.Invalid) != 1 || b.Object != "Service ns/a" || !strings.Contains(b.Reason, "port") {
		t.Errorf("invalid: %+v, want Service ns/a for its port", st.Invalid)
	}
	if !w.Has("a") || !w.Has("b") {
		t.Error("a Service lost its rules")
	}
	for ignore, want := range map[string]int{"--ignore-findings=false": nodetest.ExitFindings, "--ignore-findings": 0} {
		if out, code := w.Run("proxyc", "status", ignore); code != want || !strings.Contains(out, "Service ns/a") {
			t.Errorf("status %s exited %d, want %d and the object:\n%s", ignore, code, want, out)
		}
	}
	w.Write("cluster.yaml", applytest.Services("b", "c"))
	w.Holds(20*time.Second, "a", false)
	w.Until("nothing is invalid", func(st status.Status) bool { return len(st.Invalid) == 0 })
}

// The status names every problem of a file: with its objects, and with those that have no name.
func TestWatchShowsFindingsOfFiles(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(strings.Replace(applytest.Services("a", "b"), "ports: [{port: 80}]", "internalTrafficPolicy: Nope, ports: [{port: 80}]", 1) +
		applytest.Services("b") + strings.Replace(applytest.Services("c"), "name: c, ", "", 1))
	out, code := w.Run("proxyc", "status")
	for _, want := range []string{
		"finding      warning: Service ns/a: spec.internalTrafficPolicy: must be Cluster or Local, got \"Nope\"",
		"finding      warning: Service ns/b: is a duplicate: it replaces the previous one",
		"invalid      Service: ",
	} {
		if !strings.Contains(out, "\n"+want) {
			t.Errorf("no row %q", want)
		}
	}
	if code != nodetest.ExitFindings || t.Failed() {
		t.Errorf("status exited %d, want %d:\n%s", code, nodetest.ExitFindings, out)
	}
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Until("nothing is found", func(st status.Status) bool { return st.Healthy() && st.FindingsTotal == 1 }) // the Node is not in the file
}

// A restart finds all in place, and the rules stay in between.
func TestWatchRestart(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.Write("cluster.yaml", applytest.Services("a", "b"))
		for i, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
			w.Start("proxyc", "watch")
			st := w.Until("first sync", nodetest.Synced)
			if i > 0 && st.Operations != (apply.Count{}) {
				t.Errorf("start %d: %s, want nothing to do", i, st.Operations)
			}
			if took := w.Stop(signal); took > applytest.StopTimeout {
				t.Errorf("the end took %s, want at most %s", took, applytest.StopTimeout)
			}
			if signal == syscall.SIGTERM && !strings.Contains(w.Log.String(), "stopped: the rules ") {
				t.Error("the log does not state what happens to the rules")
			}
			if !w.Has("a") || !w.Has("b") {
				t.Fatal("the rules went with the daemon")
			}
		}
	})
}

func TestWatchRepairsDrift(t *testing.T) {
	t.Parallel()
	eachDataplane(t, func(t *testing.T, w *watched) {
		w.Sync(applytest.Services("a"))
		for _, f := range w.Plane.Flushes {
			before, _ := w.Status()
			w.Must(f.Command)
			limit := 20 * time.Second
			if f.Late {
				limit = 80 * time.Second
			} else {
				w.Holds(2*time.Second, "a", true)
			}
			applytest.Until(w.T, limit, f.Command+": the drift is reported", func() bool {
				st, ok := w.Status()
				return ok && nodetest.Synced(st) && st.LastDrift != nil && (before.LastDrift == nil || st.LastDrift.At.After(before.LastDrift.At))
			})
			if out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", append([]string{"apply", "--check"}, w.Args...)...)); err != nil {
				t.Errorf("%s: not all is back: %v\n%s", f.Command, err, out)
			}
		}
	})
}

// flush removes all rules of the node.
func (w *watched) flush() {
	w.T.Helper()
	w.Must("nft flush ruleset")
}

// The boot file is in force while the source is silent.
func TestWatchBootFrom(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.saveBootFile()
	w.flush()
	w.withoutServer()
	w.Start("proxyc", "watch")
	w.Holds(5*time.Second, "a", true)
}

// A start that cannot read its input changes nothing on the node, like apply. With a boot file, it
// does not fail.
func TestWatchReadsFirst(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "tcpEstablishedTimeout: 0s", "tcpEstablishedTimeout: 1h", 1))
	timeout := func() (text string) {
		if err := w.NS.Do(func() error {
			data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")
			text = strings.TrimSpace(string(data))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before, empty := timeout(), w.Rules()
	w.Args = append(w.Args, "--boot-from", w.File("boot"))
	w.Start("proxyc", "watch")
	if err := w.Wait(); err == nil || !strings.Contains(w.Log.String(), "cluster.yaml: no such file") {
		t.Fatalf("without a snapshot: %v", err)
	}
	if now := timeout(); now != before || w.Rules() != empty {
		t.Errorf("a start that failed left timeout %s, was %s, and the rules\n%s", now, before, w.Rules())
	}
	w.Sync(applytest.Services("a"))
	if now := timeout(); now != "3600" {
		t.Errorf("timeout %s, want 3600", now)
	}
	w.Stop(syscall.SIGTERM) // the boot file is written
	must(t, os.Remove(w.File("cluster.yaml")))
	w.flush()
	w.Start("proxyc", "watch")
	w.Holds(5*time.Second, "a", true)
	w.Until("the file is missed", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
	w.Write("cluster.yaml", applytest.Services("b"))
	w.Holds(5*time.Second, "b", true)
}

// withoutSnapshot makes the source an API server.
func (w *watched) withoutSnapshot() {
	at := slices.Index(w.Args, "-s")
	w.Args = slices.Delete(slices.Clone(w.Args), at, at+2)
}

// withoutServer makes the source an API server that is not there, and returns the
// configuration.
func (w *watched) withoutServer() string {
	w.T.Helper()
	w.Write("kubeconfig", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u}]}`)
	config := fmt.Sprintf(nodetest.Config, w.Plane.Mode) + "clientConnection: {kubeconfig: " + w.File("kubeconfig") + "}\n"
	w.Write("config", config)
	w.withoutSnapshot()
	return config
}

// An API server that accepts connections and does not answer is named, long before it counts as lost.
func TestWatchSilentServer(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.withoutServer()
	if err := w.NS.Do(func() error {
		silent, err := net.Listen("tcp4", "127.0.0.1:1")
		if err == nil {
			t.Cleanup(func() { silent.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.Start("proxyc", "watch")
	const server = "http://127.0.0.1:1"
	applytest.Until(w.T, 20*time.Second, "/readyz names the server", func() bool {
		_, body, _ := w.Get(nodetest.HealthPort, "/readyz")
		return strings.Contains(body, "from API server "+server)
	})
	applytest.Until(w.T, 30*time.Second, "the warning", func() bool {
		return strings.Contains(w.Log.String(), `"the API server does not answer: waiting" server="`+server+`" resource="`)
	})
	if n := strings.Count(w.Log.String(), "the API server does not answer"); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
}

// A request to a missing server is reported as such.
func TestWatchDeadServer(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.withoutServer()
	w.Start("proxyc", "watch", "--unready-after", "10ms")
	w.Until("the loss of contact", func(st status.Status) bool { return st.APIServer != nil && !st.APIServer.Lost.IsZero() && !st.Synced })
	cmd := w.NS.Command(t.Context(), "proxyc", "status")
	out, _ := w.NS.Run(cmd)
	for _, want := range []string{"synced       no: waiting for the initial objects from API server http://127.0.0.1:1\n", "API server   http://127.0.0.1:1\n",
		"connect: connection refused\n", "services never", "config       " + w.File("config") + " of "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != nodetest.ExitFindings {
		t.Errorf("exit code %d, want %d", code, nodetest.ExitFindings)
	}
	warned := regexp.MustCompile(`(?m)^W\d{4} .*\] "there is no contact with the API server yet`)
	if n := len(warned.FindAllString(w.Log.String(), -1)); n != 1 {
		t.Errorf("reported %d times", n)
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 503} {
		if code := w.ask(t, "127.0.0.1:10256", path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	applytest.Until(w.T, 20*time.Second, "several tries, which are ever farther apart", func() bool {
		return strings.Count(w.Log.String(), "watch-list failed - backing off") >= 6
	})
	w.Stop(syscall.SIGTERM)
	if strings.Contains(w.Log.String(), "stopping during a sync") {
		t.Error("it ends in the middle of a sync, though there was none")
	}
}

// ask asks the daemon on its node, and returns the code of the answer.
func (w *watched) ask(t *testing.T, at, path string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.NS.Dial(ctx, network, netip.AddrPort{}, netip.MustParseAddrPort(at))
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
	w.Write("config", fmt.Sprintf(nodetest.Config, "nftables"))
	w.Start("proxyc", "watch")
	first := w.Until("first sync", nodetest.Synced)
	kept, err := w.reaches("10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	other := &applytest.Buffer{}
	cmd := w.NS.Command(context.Background(), "proxyc", append([]string{"apply", "--lock-timeout", "1h"}, w.Args...)...)
	cmd.Stderr = other
	wait, err := w.NS.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); wait() }()
	waits := fmt.Sprintf("held by process %d", first.PID)
	applytest.Until(w.T, 10*time.Second, "another process waits", func() bool { return strings.Contains(other.String(), waits) })
	w.Write("config", "nonsense: true\n")
	st := w.Until("the error is reported", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
	if !nodetest.Synced(st) || !st.Started.Equal(first.Started) || !strings.Contains(w.Log.String(), "the configuration file is invalid: the current configuration is kept") {
		t.Errorf("after an invalid file: %+v", st)
	}
	for _, mode := range []string{"nftables", "iptables", "nftables", "iptables"} {
		before, _ := w.Status()
		config := fmt.Sprintf(nodetest.Config, mode)
		if mode == string(before.Mode) {
			config = strings.Replace(config, "verbosity: 4", "verbosity: 5", 1)
		}
		w.Write("config", config)
		st := w.Until("the new configuration", func(st status.Status) bool {
			return st.Started.After(before.Started) && string(st.Mode) == mode && nodetest.Synced(st) && len(st.InvalidFiles) == 0
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
		applytest.Until(w.T, 10*time.Second, "the rules of the mode alone", func() bool {
			_, err := w.NS.Run(w.NS.Command(t.Context(), "nft", "list", "table", "ip", "proxyc"))
			return (err == nil) == (mode == "nftables")
		})
	}
	if cmd.ProcessState != nil || strings.Contains(other.String(), "proxyc: ") {
		t.Errorf("another process got the lock:\n%s", other)
	}
	cmd.Process.Kill()
	wait()

	// Without the lock's file, the daemon acquires the lock again, and restores the files of the node.
	before, _ := w.Status()
	w.Must("rm -rf /run/proxyc/proxyc-$(stat -Lc %i /proc/self/ns/net).*")
	w.Until("the lock is acquired again", func(st status.Status) bool { return st.Started.After(before.Started) && nodetest.Synced(st) })
	if out, code := w.Proxyc("apply", "--lock-timeout", "1s"); code != nodetest.ExitBad || !strings.Contains(out, waits) {
		t.Errorf("beside a daemon whose lock was removed: exit %d:\n%s", code, out)
	}
	if out, code := w.Run("proxyc", "status"); code != nodetest.ExitDone || !strings.Contains(out, fmt.Sprintf("process %d", first.PID)) {
		t.Errorf("status: exit %d:\n%s", code, out)
	}
	if err := answers(kept); err != nil {
		t.Errorf("after the restart: %v", err)
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
			t.Parallel()
			w := newWatched(t, "nftables")
			w.Args = append(w.Args, "--boot-from", w.File("boot"))
			whole := fmt.Sprintf(nodetest.Config, "nftables") + "nodePortAddresses: [0.0.0.0/0]\n"
			w.Write("config", whole)
			w.Sync(applytest.Services("a") + "---\n" + nodetest.NodePort)
			before, _ := w.Status()
			w.Write("config", strings.Replace(whole, change.from, change.to, 1))
			reason := "the configuration cannot be applied, and is retried: "
			refused := func(after time.Time) func(status.Status) bool {
				return func(st status.Status) bool {
					return st.Started.After(after) && !st.Synced && strings.HasPrefix(st.Reason, reason) && strings.Contains(st.Reason, change.why)
				}
			}
			st := w.Until("it is not applied", refused(before.Started))
			if st.PID != before.PID || len(st.Retrying) != 1 {
				t.Errorf("status %+v, before %+v", st, before)
			}
			w.readyz("it is not applied", http.StatusServiceUnavailable, change.why)
			applytest.Until(w.T, 5*time.Second, "the health check answers", func() bool {
				code, _, err := w.Get(32000, "/healthz")
				return err == nil && code == http.StatusOK
			})
			st = w.Until("another attempt, later", refused(st.Started))
			w.Process.Signal(syscall.SIGHUP)
			st = w.Until("another attempt, at once", refused(st.Started))
			if !w.Has("a") {
				t.Errorf("the rules are gone:\n%s", w.Rules())
			}
			w.Write("config", "nonsense: true\n")
			st = w.Until("an invalid file", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
			w.Process.Signal(syscall.SIGHUP)
			w.Until("another attempt, beside an invalid file", refused(st.Started))
			w.Write("config", strings.Replace(whole, "10.244.0.0/16", "10.244.0.0/17", 1))
			w.Until("the next one is in force", func(st status.Status) bool { return nodetest.Synced(st) && len(st.Retrying) == 0 })
			w.readyz("the next one is in force", http.StatusOK, "")
		})
	}
}

// Files that could not be read, because too many files were open, are read once that has gone,
// though they do not change again.
func TestWatchUnreadableFiles(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(applytest.Services("a"))
	limit := unix.Rlimit{}
	must(t, unix.Prlimit(w.Process.Pid, unix.RLIMIT_NOFILE, nil, &limit))
	must(t, unix.Prlimit(w.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}, nil))
	w.Write("cluster.yaml", applytest.Services("b"))
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "10.244.0.0/16", "10.244.0.0/17", 1))
	for _, what := range []string{"the configuration file", "the snapshot"} {
		applytest.Until(w.T, 20*time.Second, what+" is unreadable, and the next attempt is 4 s later", func() bool {
			return strings.Count(w.Log.String(), what+" is invalid: the current") == 3
		})
	}
	must(t, unix.Prlimit(w.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil))
	w.readyz("before they are read", http.StatusServiceUnavailable, "is retried: ")
	w.Holds(20*time.Second, "b", true)
	w.Until("the new configuration is in force", func(st status.Status) bool {
		return nodetest.Synced(st) && len(st.InvalidFiles) == 0 && strings.Contains(w.Rules(), "10.244.0.0/17")
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
	if err := os.WriteFile(w.File("iptables-nft-restore"), fmt.Appendf(nil, "#!/bin/sh\n[ ! -e %s ] || { echo 'broken, for a test' >&2; exit 1; }\nexec %s \"$@\"\n", w.File("broken"), tool), 0o755); err != nil {
		t.Fatal(err)
	}
	w.Env = append(w.Env, "PATH="+w.Dir+":"+os.Getenv("PATH"))
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch")
	before := w.Until("first sync", nodetest.Synced)
	w.Write("broken", "")
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "iptables"), "10.244.0.0/16", "10.244.0.0/17", 1))
	w.readyz("while the tools fail", http.StatusServiceUnavailable, "broken, for a test")
	w.readyz("while the tools fail", http.StatusServiceUnavailable, "the configuration cannot be applied, and is retried")
	applytest.Until(w.T, 20*time.Second, "/livez is 200", func() bool { // each attempt has its own server
		code, _, err := w.Get(nodetest.HealthPort, "/livez")
		if err == nil && code != http.StatusOK {
			t.Fatalf("/livez: %d, want 200", code)
		}
		return err == nil
	})
	if !w.Has("a") {
		t.Errorf("rules are gone:\n%s", w.Rules())
	}
	must(t, os.Remove(w.File("broken")))
	st := w.Until("the new one is in force", func(st status.Status) bool {
		return nodetest.Synced(st) && st.Config.Modified.After(before.Config.Modified)
	})
	if st.PID != before.PID || len(st.InvalidFiles) > 0 || !strings.Contains(w.Rules(), "10.244.0.0/17") {
		t.Errorf("status %+v, before %+v; rules:\n%s", st, before, w.Rules())
	}
	w.readyz("the new one is in force", http.StatusOK, "")
}

// A change of configuration while the snapshot is invalid waits until that is valid: another program
// would not have the objects that this one keeps.
func TestWatchConfigChangeWithoutSnapshot(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(applytest.Services("a"))
	w.Write("cluster.yaml", "")
	first := w.Until("the refusal", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "10.244.0.0/16", "10.244.0.0/17", 1))
	w.Until("the new configuration waits", func(st status.Status) bool { return len(st.InvalidFiles) == 2 && st.Started.Equal(first.Started) })
	if !w.Has("a") {
		t.Errorf("the rules are gone:\n%s", w.Rules())
	}
	w.Write("cluster.yaml", applytest.Services("b"))
	w.Holds(5*time.Second, "b", true)
	w.Holds(time.Second, "a", false)
	w.Until("the new configuration", func(st status.Status) bool { return st.Started.After(first.Started) && nodetest.Synced(st) })
}

// Called as kube-proxy, it takes kube-proxy's arguments.
func TestWatchAsKubeProxy(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("kube-proxy")
	w.Until("first sync", nodetest.Synced)
	w.Holds(time.Second, "a", true)
}

// serve listens on the node as the endpoint of a pod would.
func (w *watched) serve(at string) {
	w.T.Helper()
	w.Must("ip link add pods type bridge")
	w.Must("ip addr add " + netip.MustParseAddrPort(at).Addr().String() + "/24 dev pods")
	w.Must("ip link set pods up")
	var listener net.Listener
	if err := w.NS.Do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { listener.Close() })
}

// Node ports and health checks answer on an address as soon as the node has it.
func TestWatchNodeAddress(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("config", fmt.Sprintf(nodetest.Config, "nftables")+"nodePortAddresses: [192.0.2.0/24]\n")
	w.Write("cluster.yaml", nodetest.NodePort)
	w.serve("10.244.1.10:8080")
	answers := func(port uint16) bool {
		conn, err := w.NS.Dial(t.Context(), "tcp", netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.11"), port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	w.Start("proxyc", "watch")
	st := w.Until("first sync", nodetest.Synced)
	for _, step := range []struct {
		change string
		want   bool
	}{{"add", true}, {"del", false}, {"add", true}} {
		w.Must("ip addr " + step.change + " 192.0.2.11/24 dev pods")
		for _, port := range []uint16{32000, 30080} {
			applytest.Until(w.T, 5*time.Second, fmt.Sprintf("port %d after %s: answers: %t", port, step.change, step.want), func() bool {
				return answers(port) == step.want
			})
		}
	}
	if now := w.Until("the changes are taken", nodetest.Synced); now.Generation < st.Generation+1 {
		t.Errorf("generation %d after %d: no sync took the addresses", now.Generation, st.Generation)
	}
}

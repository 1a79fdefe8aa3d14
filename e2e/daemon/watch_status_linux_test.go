package daemon

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// localService is a load balancer's Service with a health check.
const localService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {type: LoadBalancer, clusterIP: 10.96.0.97, externalTrafficPolicy: Local, healthCheckNodePort: 32100, ports: [{port: 80, nodePort: 32080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.10], nodeName: node1}]
ports: [{port: 8080, name: ""}]
`

// A health check whose port another program uses is reported by status and /readyz until it
// answers, which needs no change.
func TestWatchHealthCheckTaken(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	var taken net.Listener
	if err := w.NS.Do(func() (err error) {
		taken, err = net.Listen("tcp4", ":32100")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.Write("cluster.yaml", localService)
	w.Start("proxyc", "watch")
	st := w.Until("the first sync", func(st status.Status) bool { return nodetest.Synced(st) && len(st.Down) > 0 })
	if d := st.Down[0]; d.Server != "healthCheckNodePort of Service ns/web" || d.Address != "port 32100 (IPv4)" || st.Healthy() {
		t.Errorf("not served: %+v, well: %t", d, st.Healthy())
	}
	const why = "healthCheckNodePort 32100 of Service ns/web does not answer: listen tcp4 0.0.0.0:32100: bind: address already in use"
	if code, body, err := w.Get(nodetest.HealthPort, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, why) {
		t.Errorf("/readyz: %d %s %v", code, body, err)
	}
	taken.Close()
	w.Until("it answers", func(st status.Status) bool { return st.Healthy() && st.Reason == "" })
	applytest.Until(w.T, 5*time.Second, "the health check", func() bool {
		code, _, err := w.Get(32100, "/")
		return err == nil && code == http.StatusOK
	})
	if n := strings.Count(w.Log.String(), fmt.Sprintf("%q", "healthCheckNodePort does not serve, retrying")); n != 1 {
		t.Errorf("reported %d times in the log, want once", n)
	}
}

// A deleted table is reported with its deleter. If it is deleted repeatedly, the status is not OK.
func TestWatchTableGone(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch")
	w.Until("the first sync", nodetest.Synced)
	for i := range 3 {
		w.Must("nft delete table ip proxyc")
		st := w.Until("the repair", func(st status.Status) bool {
			return nodetest.Synced(st) && st.LastDrift != nil && st.LastDrift.Recent > i
		})
		if d := st.LastDrift; !slices.Equal(d.Gone, []string{"table ip proxyc"}) || len(d.First) != 0 || len(d.By) != 1 || !strings.HasPrefix(d.By[0], "nft (process ") {
			t.Errorf("last drift: %+v", d)
		}
		if st.Healthy() != (i < 2) {
			t.Errorf("well after %d times: %t", i+1, st.Healthy())
		}
	}
	if !strings.Contains(w.Log.String(), `"another program removed proxyc's rules" object="table ip proxyc" by="nft (process `) {
		t.Error("the log does not say that the table is gone, and who did it")
	}
}

// The status shows the snapshot in force, not the rejected one, and metrics count rejections.
func TestWatchRejectedSnapshot(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	then := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(t, os.Chtimes(w.File("cluster.yaml"), then, then))
	w.Start("proxyc", "watch", "--boot-from", w.File("missing/boot"))
	w.Until("the first sync", nodetest.Synced)
	w.Write("cluster.yaml", "")
	st := w.Until("the refusal", func(st status.Status) bool { return len(st.InvalidFiles) > 0 && st.BootFile.Error != "" })
	if len(st.Snapshot) != 1 || !st.Snapshot[0].Modified.Equal(then) {
		t.Errorf("in force: %+v, want that of %s", st.Snapshot, then)
	}
	w.Write("cluster.yaml", strings.TrimSuffix(applytest.Services("b"), "---\n")+"# cut")
	w.Until("the next refusal", func(st status.Status) bool { return strings.Contains(st.InvalidFiles[0].Reason, "cut off") })
	w.warns("cluster.yaml is not in force: ")
	page := w.page("/metrics")
	for series, want := range map[string]string{"proxyc_invalid_files": "1", "proxyc_boot_file_failed": "1", "proxyc_not_served": "0", "proxyc_kube_proxy_beside": "0"} {
		if got := value(t, page, series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}
}

// A Service of a file that is invalid from the start is omitted from the rules. Status, metrics, trace and
// explain say so until it is valid, and the node stays ready. If it becomes invalid later, its rules stay.
func TestWatchInvalidParts(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	cluster := applytest.Services("a", "b")
	wrong := strings.Replace(cluster, "port: 80", "port: 80000", 1)
	if wrong == cluster {
		t.Fatal("the cluster has no port 80")
	}
	w.Write("cluster.yaml", wrong)
	w.Start("proxyc", "watch") // the verbs find its socket
	st := w.Until("the first sync", nodetest.Synced)
	series := func(want string) {
		t.Helper()
		if got := value(t, w.page("/metrics"), `proxyc_findings{severity="error"}`); got != want {
			t.Errorf("findings that are errors: %s, want %s", got, want)
		}
	}
	if w.Has("a") || st.Healthy() || !st.NodeHealthy() {
		t.Error("status takes a Service that is left out for well")
	}
	series("1")
	w.readyz("with a Service that is wrong", http.StatusOK, "")
	const why = "is ignored: Service ns/a: spec.ports[0].port: must be 1-65535, got 80000"
	for _, args := range [][]string{
		{"trace", "--from", "10.244.1.5@cni0", "--to", "ns/a:80"},
		{"trace", "--from", "10.244.1.5@cni0", "--to", "10.96.0.97:80"},
		{"explain", "ns/a"},
		{"explain", "10.96.0.97:80"},
	} {
		if out, _ := w.Run("proxyc", args...); !strings.Contains(out, why) { // trace to a name is an error
			t.Errorf("%s prints\n%swant\n%s", strings.Join(args, " "), out, why)
		}
	}
	out, code := w.Run("proxyc", "explain", "ns/b")
	if code != 0 || strings.Contains(out, "is ignored") {
		t.Errorf("of a valid Service: exit %d\n%s", code, out)
	}
	w.Write("cluster.yaml", cluster)
	w.Until("it is right again", func(st status.Status) bool { return st.Healthy() && w.Has("a") })
	series("0")

	w.Write("cluster.yaml", wrong+applytest.Services("c"))
	w.Holds(20*time.Second, "c", true)
	if !w.Has("a") {
		t.Error("the Service lost its rules")
	}
	row := "\ninvalid      Service ns/a: spec.ports[0].port: must be 1-65535, got 80000: the last good version stays in force\n"
	if out, code := w.Run("proxyc", "status"); code != nodetest.ExitFindings || !strings.Contains(out, row) {
		t.Errorf("status exited %d, want %d and%sgot\n%s", code, nodetest.ExitFindings, row, out)
	}
	for want, args := range map[string][]string{
		"\n  the newest version of Service ns/a is not in force: spec.ports[0].port: must be 1-65535, got 80000: the last good version stays in force\n": nil,
		"\n  because: the rules in force are of the last good version of Service ns/a\n":                                                                 append(w.Args, "--kernel"),
	} {
		out, code := w.Run("proxyc", append([]string{"trace", "--from", "10.244.1.5@cni0", "--to", "10.96.0.97:80"}, args...)...)
		if code == 0 || !strings.Contains(out, want) {
			t.Errorf("trace %q: exit %d, want %q in\n%s", args, code, want, out)
		}
	}
	w.readyz("with a Service that became wrong", http.StatusOK, "")
	w.warns("Service ns/a is not in force: spec.ports[0].port: must be 1-65535, got 80000")
}

// warns compares the newest snapshot with the kernel, and follows a packet, while the daemon uses another one.
func (w *watched) warns(want string) {
	w.T.Helper()
	for _, args := range [][]string{
		append(append([]string{"prove"}, w.Args...), "ir", "kernel"),
		append([]string{"trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/b:80"}, w.Args...),
	} {
		if out, _ := w.Run("proxyc", args...); !strings.Contains(out, want) || !strings.Contains(out, "(proxyc watch ") {
			w.T.Errorf("%s prints\n%swant\n%s, and the process", args[0], out, want)
		}
	}
}

// The log reports once that a rejected or missing file is valid again.
func TestWatchGoodAgain(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	cluster, config := applytest.Services("a"), fmt.Sprintf(nodetest.Config, w.Plane.Mode)
	w.Write("cluster.yaml", cluster)
	w.Start("proxyc", "watch")
	w.Until("the first sync", nodetest.Synced)
	again := map[string]string{
		"cluster.yaml": `"the snapshot is valid again"`,
		"config":       `"the configuration file is valid again and contains the current configuration"`,
	}
	for i, broken := range []func(name string){
		func(name string) { w.Write(name, "{ [") },
		func(name string) {
			must(t, os.Remove(w.File(name)))
		},
	} {
		for name, good := range map[string]string{"cluster.yaml": cluster, "config": config} {
			broken(name)
			w.Until(name+" is rejected", func(st status.Status) bool { return len(st.InvalidFiles) == 1 })
			w.Write(name, good)
			w.Until(name+" counts", func(st status.Status) bool { return len(st.InvalidFiles) == 0 })
			applytest.Until(w.T, 5*time.Second, "the log", func() bool {
				return strings.Count(w.Log.String(), again[name]) == i+1
			})
		}
	}
}

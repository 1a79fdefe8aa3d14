package daemon

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// readyz waits for an answer of /readyz.
func (w *watched) readyz(what string, want int, reason string) {
	w.T.Helper()
	applytest.Until(w.T, 20*time.Second, what, func() bool {
		code, body, err := w.Get(nodetest.HealthPort, "/readyz")
		return err == nil && code == want && strings.Contains(body, reason)
	})
}

// The kernel lets only the owner change an owned table. All of the daemon's changes fail until the
// owner ends and its table is removed.
func TestWatchFailedSync(t *testing.T) {
	t.Parallel()
	for _, plane := range []struct{ name, table, reason, counter string }{
		{"nftables", "ip proxyc", "belongs to another program", "nftables_sync_failures_total"},
		{"iptables-nft", "ip nat", "Operation not permitted", "iptables_restore_failures_total"},
	} {
		t.Run(plane.name, func(t *testing.T) {
			w := newWatched(t, plane.name)
			w.Sync(applytest.Services("a"))
			w.readyz("first sync", http.StatusOK, "")
			release := w.own(plane.table)
			w.readyz("while the table has an owner", http.StatusServiceUnavailable, plane.reason)
			st := w.Until("the error is reported", func(st status.Status) bool { return st.LastError != nil })
			if st.Synced || len(st.Refused) > 0 || !strings.Contains(st.LastError.Error, plane.reason) {
				t.Errorf("want not synced and no Service to blame, got %+v", st)
			}
			counter := fmt.Sprintf(`kubeproxy_sync_proxy_rules_%s{ip_family="IPv4"}`, plane.counter)
			if value(t, w.page("/metrics"), counter) == "0" {
				t.Error("the failure is not counted")
			}
			release()
			w.readyz("after the owner has gone", http.StatusOK, "")
			if !w.Has("a") {
				t.Error("ready, and the kernel lacks Service a")
			}
		})
	}
}

// own puts a table in the place of another that belongs to a process alone,
// until release is called.
func (w *watched) own(table string) (release func()) {
	w.T.Helper()
	cmd := w.NS.Command(context.Background(), "nft", "-i")
	commands, err := cmd.StdinPipe()
	if err != nil {
		w.T.Fatal(err)
	}
	wait, err := w.NS.Start(cmd)
	if err != nil {
		w.T.Fatal(err)
	}
	release = sync.OnceFunc(func() { commands.Close(); wait() })
	w.T.Cleanup(release)
	if _, err := fmt.Fprintf(commands, "delete table %s; add table %[1]s { flags owner; }\n", table); err != nil {
		w.T.Fatal(err)
	}
	return release
}

// picky is an iptables-restore over a kernel that has no match "recent", which
// session affinity needs.
const picky = `#!/bin/sh
text=$(cat; echo .)
line=$(printf %s "${text%.}" | grep -n -m 1 -F -e "-m recent" | cut -d: -f1)
if [ -n "$line" ]; then
	echo "iptables-restore: line $line failed: no such match." >&2
	exit 4
fi
printf %s "${text%.}" | PATH="$BEHIND" iptables-nft-restore "$@"
`

// A refused Service is omitted and named, and does not affect others. The daemon tries it again
// when it changes.
func TestWatchRefusesService(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	path := w.File("bin")
	must(t, os.Mkdir(path, 0o755))
	must(t, os.WriteFile(path+"/iptables-nft-restore", []byte(picky), 0o755))
	w.Env = []string{"PATH=" + path + ":" + os.Getenv("PATH"), "BEHIND=" + os.Getenv("PATH")}
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch")
	w.readyz("first sync", http.StatusOK, "")

	w.Write("cluster.yaml", strings.Replace(applytest.Services("a", "b", "c"), "clusterIP: 10.96.0.98", "sessionAffinity: ClientIP, clusterIP: 10.96.0.98", 1))
	w.readyz("while b is refused", http.StatusServiceUnavailable, "the kernel refuses the rules of 1 Services")
	st := w.Until("b is named", func(st status.Status) bool { return nodetest.Synced(st) && len(st.Refused) > 0 })
	if st.NodeHealthy() { // /readyz is 503, and the exit code of status 1
		t.Error("the node is healthy while the kernel refuses a Service")
	}
	const why = "\n  Service ns/b is refused by the kernel, so its packets are not proxied: "
	if out, code := w.Run("proxyc", "trace", "--from", "10.244.1.5@cni0", "--to", "ns/b:80"); code != nodetest.ExitFindings || !strings.Contains(out, why) || !strings.Contains(out, "\n  expected: 10.244.1.98:8080") {
		t.Errorf("trace: exit %d, want%s in\n%s", code, why, out)
	}
	if q := st.Refused[0]; q.Object != "Service ns/b" || !strings.Contains(q.Reason, "no such match") {
		t.Errorf("refused: %+v, want ns/b with the reason", st.Refused)
	}
	if !w.Has("a") || w.Has("b") || !w.Has("c") {
		t.Errorf("want a and c alone, got\n%s", w.Rules())
	}
	if n := value(t, w.page("/metrics"), "proxyc_refused_services"); n != "1" {
		t.Errorf("proxyc_refused_services is %s, want 1", n)
	}

	w.Write("cluster.yaml", applytest.Services("a", "b", "c"))
	w.readyz("when b has changed", http.StatusOK, "")
	if !w.Has("a") || !w.Has("b") || !w.Has("c") {
		t.Errorf("want all, got\n%s", w.Rules())
	}
}

// If every Service is refused, the cause is the node's: the rules in force remain, also those of another
// mode, and no Service is blamed.
func TestWatchKeepsRulesForSharedCause(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"iptables-nft", "iptables-legacy", "nftables", "ipvs"} {
		t.Run(name, func(t *testing.T) {
			if name == "ipvs" && !applytest.HaveIPVS(t) {
				t.Skip("no ip_vs")
			}
			t.Parallel()
			w := newWatched(t, name)
			for _, tool := range []string{"iptables-nft-restore", "iptables-legacy-restore"} {
				must(t, os.WriteFile(w.File(tool), []byte(fmt.Sprintf(fussy, w.File("fussy"), tool)), 0o755))
			}
			w.Env = []string{"PATH=" + w.Dir + ":" + os.Getenv("PATH"), "BEHIND=" + os.Getenv("PATH")}
			before := []string{"a", "b", "c"}
			w.Sync(applytest.Services(before...))
			w.readyz("first sync", http.StatusOK, "")
			w.Write("fussy", "")
			mode := w.Plane.Mode
			if mode == "nftables" {
				mode = "iptables"
			}
			w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, mode), "clusterCIDR: 10.244.0.0/16", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}", 1))
			w.readyz("while the tool rejects all", http.StatusServiceUnavailable, "the kernel refuses the rules of 3 of 3 Services, which counts as a failure of the node: the previous rules stay in force. The refused are of namespace ns: ns/a, ns/b, ns/c. Service ns/")
			st := w.Until("another attempt", func(st status.Status) bool {
				return st.LastError != nil && strings.Count(w.Log.String(), "the sync failed") > 1
			})
			if len(st.Refused) > 0 {
				t.Errorf("refused: %v", st.Refused)
			}
			for _, service := range before {
				if !w.Has(service) {
					t.Errorf("Service %s has no rules:\n%s", service, w.Rules())
				}
			}
			must(t, os.Remove(w.File("fussy")))
			w.readyz("when the tool accepts all", http.StatusOK, "")
		})
	}
}

// A name that no interface can have is refused before anything changes, whatever the mode.
func TestWatchKeepsRulesForWrongInterface(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"iptables-nft", "nftables"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, name)
			w.Sync(applytest.Services("a", "b"))
			kept := w.Rules()
			w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "iptables"), "clusterCIDR: 10.244.0.0/16",
				"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: enp3s0f0.803@enp3s0f0}", 1))
			st := w.Until("the configuration is invalid", func(st status.Status) bool { return nodetest.Synced(st) && len(st.InvalidFiles) == 1 })
			if !strings.Contains(st.InvalidFiles[0].Reason, `got "enp3s0f0.803@enp3s0f0"`) || len(st.Refused) > 0 {
				t.Errorf("invalid %v, refused %v", st.InvalidFiles, st.Refused)
			}
			w.Stop(syscall.SIGTERM)
			counts := regexp.MustCompile(`#.*|\[\d+:\d+\]`)
			if diff := cmp.Diff(counts.ReplaceAllString(kept, ""), counts.ReplaceAllString(w.Rules(), "")); diff != "" {
				t.Errorf("rules (-before +after):\n%s", diff)
			}
		})
	}
}

// Two Services claim one external IP. In files no author can win it, by a time of creation either. An API
// server knows who was first, and apply --check beside its daemon decides like the daemon.
func TestContestedAddress(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	claims := func(created map[string]string) string {
		text := applytest.Services("a", "b")
		for name, time := range created {
			text = strings.Replace(text, "metadata: {name: "+name+",", "metadata: {creationTimestamp: \""+time+"\", name: "+name+",", 1)
		}
		return strings.ReplaceAll(text, "ports: [{port: 80}]", "externalIPs: [198.18.0.1], ports: [{port: 80}]")
	}
	text := claims(map[string]string{"a": "2026-01-02T00:00:00Z", "b": "1970-01-01T00:00:01Z"})
	w.Write("cluster.yaml", text)
	args := append([]string{"apply"}, w.Args...)
	if out, code := w.Run("proxyc", args...); code != 2 || strings.Count(out, "no file can decide between them: neither Service has it") != 2 || strings.Contains(w.Rules(), "198.18.0.1") {
		t.Errorf("apply: exit code %d:\n%s%s", code, out, w.Rules())
	}
	w.Sync(text)
	if strings.Contains(w.Rules(), "198.18.0.1") || !w.Has("a") || !w.Has("b") {
		t.Errorf("watch with files:\n%s", w.Rules())
	}
	if out, code := w.Run("proxyc", append(args, "--check")...); !strings.Contains(out, "nothing to change") {
		t.Errorf("beside a daemon with files: exit code %d:\n%s", code, out)
	}
	w.Stop(syscall.SIGTERM)
	w.serveAPI(text)
	w.Start("proxyc", "watch")
	w.Until("the API server's objects", nodetest.Synced)
	if !strings.Contains(w.Rules(), "198.18.0.1") {
		t.Errorf("watch with an API server:\n%s", w.Rules())
	}
	if out, code := w.Run("proxyc", append(args, "--check")...); !strings.Contains(out, "nothing to change") {
		t.Errorf("beside a daemon with an API server: exit code %d:\n%s", code, out)
	}
}

// fussy is an iptables-restore that rejects rules of an interface while a file exists.
const fussy = `#!/bin/sh
text=$(cat; echo .)
line=$(printf %%s "${text%%.}" | grep -n -m 1 -F -e "-i cni0" | cut -d: -f1)
if [ -e %s ] && [ -n "$line" ]; then
	echo "iptables-restore: line $line failed: bad interface" >&2
	exit 4
fi
printf %%s "${text%%.}" | PATH="$BEHIND" %s "$@"
`

package daemon

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// recorded loads recorded rules of kube-proxy. The test does not create nfacct objects.
func (w *watched) recorded(file, tool string) {
	w.T.Helper()
	w.Must("grep -v -- '-m nfacct' ../../testdata/apply/takeover/" + file + " | " + tool)
}

// peer starts a process that the daemon identifies as kube-proxy. end stops it.
func (w *watched) peer() (end func()) {
	w.T.Helper()
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		w.T.Fatal(err)
	}
	name := filepath.Join(w.T.TempDir(), "kube-proxy")
	must(w.T, os.WriteFile(name, sleep, 0o755))
	cmd := w.NS.Command(context.Background(), name, "3600")
	wait, err := w.NS.Start(cmd)
	if err != nil {
		w.T.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		cmd.Process.Kill()
		wait()
	})
	w.T.Cleanup(end)
	return end
}

// If rules of kube-proxy, in any mode, appear during the run of a daemon, they stay while
// kube-proxy runs, and the daemon is not ready. The daemon removes them after kube-proxy has ended.
func TestWatchKubeProxyBeside(t *testing.T) {
	t.Parallel()
	type load struct {
		file, tool, sign string
		list             []string
	}
	table := load{"kube-proxy.nft", "nft -f -", "table ip kube-proxy", []string{"nft", "list", "ruleset"}}
	chains := func(variant string) load {
		return load{"kube-proxy.iptables", "iptables-" + variant + "-restore", "KUBE-PROXY-CANARY", []string{"iptables-" + variant + "-save"}}
	}
	for i, tc := range []struct {
		name, plane string
		load
	}{
		{"nftables beside nftables", "nftables", table},
		{"nftables beside iptables", "iptables-legacy", table},
		{"iptables-nft beside nftables", "nftables", chains("nft")},
		{"iptables-legacy beside nftables", "nftables", chains("legacy")},
		{"iptables-legacy beside iptables-legacy", "iptables-legacy", chains("legacy")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if i%4 > 0 {
				applytest.Long(t)
			}
			t.Parallel()
			w := newWatched(t, tc.plane)
			w.Sync(applytest.Services("a"))
			there := func() bool {
				out, err := w.NS.Run(w.NS.Command(t.Context(), tc.list[0], tc.list[1:]...))
				if err != nil {
					t.Fatal(err)
				}
				return strings.Contains(string(out), tc.sign)
			}
			ready := func() (reason string, is bool) {
				code, body, err := w.Get(nodetest.HealthPort, "/readyz")
				if err != nil {
					t.Fatal(err)
				}
				return body, code == http.StatusOK
			}
			end := w.peer()
			applytest.Until(w.T, 20*time.Second, "kube-proxy in the status", func() bool {
				if !there() { // the start takes over what comes before its end
					w.recorded(tc.file, tc.tool)
				}
				st, ok := w.Status()
				return ok && st.KubeProxy != nil && st.KubeProxy.State == status.Maintained && st.KubeProxy.Process != ""
			})
			if reason, is := ready(); is || !strings.Contains(reason, "kube-proxy is running (process ") {
				t.Errorf("ready: %t %s", is, reason)
			}
			applytest.Until(w.T, 20*time.Second, "the reason names what is there", func() bool { // of its tables, one can be there first
				reason, is := ready()
				return !is && strings.Contains(reason, tc.sign)
			})
			if !there() {
				t.Error("rules of a kube-proxy that runs are removed")
			}
			w.Holds(20*time.Second, "a", true)
			end()
			applytest.Until(w.T, time.Minute, "its rules are removed, and all is well", func() bool {
				st, ok := w.Status()
				_, is := ready()
				return ok && is && st.Healthy() && st.KubeProxy.State == status.Removed && !there()
			})
		})
	}
}

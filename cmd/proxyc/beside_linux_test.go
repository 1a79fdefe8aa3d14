package main

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
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// recorded loads recorded rules of kube-proxy.
func (w *watched) recorded(file string, tool ...string) {
	w.t.Helper()
	text, err := os.ReadFile("../../testdata/apply/takeover/" + file)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := w.ns.Command(w.t.Context(), tool[0], tool[1:]...)
	var rules strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "-m nfacct") { // the test does not create nfacct objects
			rules.WriteString(line)
		}
	}
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := w.ns.Run(cmd); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
}

// peer starts a process that the daemon identifies as kube-proxy. end stops it.
func (w *watched) peer() (end func()) {
	w.t.Helper()
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		w.t.Fatal(err)
	}
	name := filepath.Join(w.t.TempDir(), "kube-proxy")
	must(w.t, os.WriteFile(name, sleep, 0o755))
	cmd := w.ns.Command(context.Background(), name, "3600")
	wait, err := w.ns.Start(cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		cmd.Process.Kill()
		wait()
	})
	w.t.Cleanup(end)
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
			w.sync(applytest.Services("a"))
			there := func() bool {
				out, err := w.ns.Run(w.ns.Command(t.Context(), tc.list[0], tc.list[1:]...))
				if err != nil {
					t.Fatal(err)
				}
				return strings.Contains(string(out), tc.sign)
			}
			ready := func() (reason string, is bool) {
				code, body, err := w.get(healthPort, "/readyz")
				if err != nil {
					t.Fatal(err)
				}
				return body, code == http.StatusOK
			}
			end := w.peer()
			within(w, 20*time.Second, "kube-proxy in the status", func() (struct{}, bool) {
				if !there() { // the start takes over what comes before its end
					w.recorded(tc.file, strings.Fields(tc.tool)...)
				}
				st, ok := w.status()
				return struct{}{}, ok && st.KubeProxy != nil && st.KubeProxy.State == status.Maintained && st.KubeProxy.Process != ""
			})
			if reason, is := ready(); is || !strings.Contains(reason, "kube-proxy is running (process ") {
				t.Errorf("ready: %t %s", is, reason)
			}
			within(w, 20*time.Second, "the reason names what is there", func() (string, bool) { // of its tables, one can be there first
				reason, is := ready()
				return reason, !is && strings.Contains(reason, tc.sign)
			})
			if !there() {
				t.Error("rules of a kube-proxy that runs are removed")
			}
			w.holds(20*time.Second, "a", true)
			end()
			within(w, time.Minute, "its rules are removed, and all is well", func() (struct{}, bool) {
				st, ok := w.status()
				_, is := ready()
				return struct{}{}, ok && is && st.Healthy() && st.KubeProxy.State == status.Removed && !there()
			})
		})
	}
}

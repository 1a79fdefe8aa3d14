package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon"
)

// recorded loads rules that kube-proxy made.
func (w *watched) recorded(file string, tool ...string) {
	w.t.Helper()
	text, err := os.ReadFile("../../testdata/apply/takeover/" + file)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := w.ns.Command(w.t.Context(), tool[0], tool[1:]...)
	var rules strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "-m nfacct") { // objects that nobody made here
			rules.WriteString(line)
		}
	}
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := w.ns.Run(cmd); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
}

// Rules of kube-proxy that come beside a running daemon are named and removed
// within seconds, in whatever mode; where they come back they stay, and that
// is said until they are gone.
func TestWatchKubeProxyComesBack(t *testing.T) {
	type load struct {
		file, tool, sign string
		list             []string
	}
	table := load{"kube-proxy.nft", "nft -f -", "table ip kube-proxy", []string{"nft", "list", "ruleset"}}
	chains := func(variant string) load {
		return load{"kube-proxy.iptables", "iptables-" + variant + "-restore", "KUBE-PROXY-CANARY", []string{"iptables-" + variant + "-save"}}
	}
	for _, tc := range []struct {
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
			t.Parallel()
			w := newWatched(t, tc.plane)
			w.write("cluster.yaml", applytest.Services("a"))
			w.start("proxyc", "watch")
			w.until("first sync", synced)
			there := func() bool {
				out, err := w.ns.Run(w.ns.Command(t.Context(), tc.list[0], tc.list[1:]...))
				if err != nil {
					t.Fatal(err)
				}
				return strings.Contains(string(out), tc.sign)
			}
			comes := func() { t.Helper(); w.recorded(tc.file, strings.Fields(tc.tool)...) }
			gone := true // when the status was asked for
			w.until("kube-proxy in the status", func(st daemon.Status) bool {
				if st.KubeProxy != nil {
					return !st.KubeProxy.Stays
				}
				if gone { // what comes before the start has ended goes with it
					comes()
				}
				gone = !there()
				return false
			})
			within(w, 20*time.Second, "its rules are removed", func() (struct{}, bool) { return struct{}{}, !there() })
			if log := w.log.String(); !strings.Contains(log, "kube-proxy's rules are there: they are removed") {
				t.Error("the log does not say so")
			}
			w.until("all is well", synced)
			comes()
			w.until("it runs", func(st daemon.Status) bool { return st.KubeProxy != nil && st.KubeProxy.Stays })
			w.holds(20*time.Second, "a", true)
		})
	}
}

package daemon

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// A kernel without flowtables is reported once, and everything else works. With flowtables, the
// daemon creates the table. A bridge whose packets are translated first is reported once, and once
// more when that ends.
func TestWatchFastpath(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Must("ip link add cni0 type bridge")
	const call = "net.bridge.bridge-nf-call-"
	_, err := w.NS.Run(w.NS.Command(t.Context(), "sysctl", "-w", call+"iptables=1", call+"ip6tables=0"))
	filtered := err == nil // br_netfilter is there
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch", "--nftables-fastpath", "eth*,cni0")
	w.Until("first sync", nodetest.Synced)
	w.Holds(5e9, "a", true)
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Holds(5e9, "b", true)
	var tells [2]int
	applytest.Until(w.T, 20*time.Second, "a word about the fast path", func() bool {
		tells = [2]int{strings.Count(w.Log.String(), "makes no flowtable"), strings.Count(w.Log.String(), "take the fast path")}
		return tells != [2]int{}
	})
	_, err = w.NS.Run(w.NS.Command(t.Context(), "nft", "list", "table", "inet", "proxyc-fastpath"))
	want, bridge := [2]int{0, 1}, 1
	if err != nil {
		want, bridge = [2]int{1, 0}, 0
		if slices.Contains(strings.Split(os.Getenv("PROXYC_REQUIRE"), ","), "flowtable") {
			t.Fatalf("PROXYC_REQUIRE names flowtable: %v", err)
		}
	}
	if !filtered {
		bridge = 0
	}
	const warning, ended = `half of each connection gains nothing`, `"what pods send by the bridge takes the fast path" interface="cni0"`
	if bridge == 1 {
		applytest.Until(w.T, 20*time.Second, "a word about the bridge", func() bool {
			return strings.Contains(w.Log.String(), warning)
		})
		w.Must("ip link add eth1 type veth peer name other1") // the table is looked at, and nothing is new
		applytest.Until(w.T, 20*time.Second, "the interface in the table", func() bool {
			out, _ := w.Run("nft", "list", "table", "inet", "proxyc-fastpath")
			return strings.Contains(out, "eth1")
		})
		out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "doctor", "--proxy-mode", "nftables", "--try", "nftables"))
		if text := fmt.Sprint(string(out), err); !strings.Contains(text, "warning  fast path: packets of pods on bridge cni0 are translated before") {
			t.Errorf("doctor says nothing of the bridge:\n%s", text)
		}
		w.Must("sysctl -w " + call + "iptables=0")
		w.Must("ip link add eth2 type veth peer name other2")
		applytest.Until(w.T, 20*time.Second, "a word about the setting", func() bool {
			return strings.Contains(w.Log.String(), ended)
		})
		if !strings.Contains(w.Log.String(), `interface="cni0" settings="net.bridge.bridge-nf-call-iptables = 1"`) {
			t.Errorf("neither the bridge nor the setting is named:\n%s", w.Log.String())
		}
	}
	w.Stop(syscall.SIGTERM)
	if tells != want {
		t.Errorf("the log tells %d times that there is no flowtable, and %d times that there is one; listing it: %v", tells[0], tells[1], err)
	}
	if log := w.Log.String(); strings.Count(log, warning) != bridge || strings.Count(log, ended) != bridge {
		t.Errorf("the bridge is not reported %d times, or its end is:\n%s", bridge, log)
	}
}

package daemon

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// podless is a Node without pod ranges.
const podless = "\n---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n"

// TestWatchWaitsForPodCIDRs: in mode NodeCIDR, the daemon writes no rules that cannot identify
// pods. The rules in force stay, and log, status and events report the reason.
func TestWatchWaitsForPodCIDRs(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	config := strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "clusterCIDR: 10.244.0.0/16", "detectLocalMode: NodeCIDR", 1)
	w.Write("config", strings.Replace(config, "verbosity: 4", "verbosity: 0", 1))
	pods := func(cidr string) string {
		return strings.Replace(podless, "status:", "spec: {podCIDRs: ["+cidr+"]}, status:", 1)
	}
	w.Write("cluster.yaml", applytest.Services("a")+pods("10.244.1.0/24"))
	w.Args = append(w.Args, "--boot-from", w.File("boot"))
	w.Start("proxyc", "watch")
	w.Until("rules", func(st status.Status) bool {
		return st.Synced && w.Has("a") && strings.Contains(w.Rules(), "10.244.1.0/24")
	})

	w.Write("cluster.yaml", applytest.Services("a", "b")+pods("10.244.2.0/24"))
	w.Until("rules for other pods", func(status.Status) bool {
		return w.Has("b") && strings.Contains(w.Rules(), "10.244.2.0/24") && !strings.Contains(w.Rules(), "10.244.1.0/24")
	})

	for _, node := range []string{podless, ""} { // Services are followed, pods stay those that they were
		w.Write("cluster.yaml", applytest.Services("a")+node)
		w.Until("the Service gone", func(status.Status) bool { return !w.Has("b") })
		w.Write("cluster.yaml", applytest.Services("a", "b")+node)
		w.Until("the Service back", func(st status.Status) bool { return st.Synced && w.Has("b") })
		if !strings.Contains(w.Rules(), "10.244.2.0/24") {
			t.Errorf("pods are not known any more:\n%s", w.Rules())
		}
	}
	if log := w.Log.String(); !strings.Contains(log, "names no pod range: the previous ranges remain effective") {
		t.Error("not reported of")
	}
	before := w.Rules()
	w.Stop(syscall.SIGTERM)

	// The daemon does not know which they were, but the rules do.
	w.Write("cluster.yaml", applytest.Services("c")+podless)
	w.Log = &applytest.Buffer{}
	w.Start("proxyc", "watch")
	const why = "waiting for pod ranges of Node node1"
	st := w.Until("the reason", func(st status.Status) bool {
		return strings.Contains(st.Reason, why) && strings.Contains(w.Log.String(), why)
	})
	if st.Synced {
		t.Error("synced")
	}
	if code := w.ask(t, "127.0.0.1:10256", "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", code)
	}
	if code := w.ask(t, "127.0.0.1:10256", "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
	var reported []string
	for line := range strings.Lines(w.Log.String()) {
		if strings.Contains(line, why) {
			reported = append(reported, line)
		}
	}
	if len(reported) != 1 || !strings.HasPrefix(reported[0], "W") {
		t.Errorf("reported: %q", reported)
	}
	if diff := cmp.Diff(before, w.Rules()); diff != "" {
		t.Errorf("the rules of before do not stay (-want +got):\n%s", diff)
	}
	w.Write("cluster.yaml", applytest.Services("c")+pods("10.244.3.0/24"))
	w.Until("rules for the new pods", func(st status.Status) bool {
		return st.Synced && w.Has("c") && !w.Has("a") && strings.Contains(w.Rules(), "10.244.3.0/24")
	})
}

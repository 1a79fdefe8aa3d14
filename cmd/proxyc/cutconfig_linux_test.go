package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// A truncated or partly written configuration is not put in force. A configuration without a final
// line break, as in a ConfigMap, is complete.
func TestWatchConfigCutOff(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", applytest.Services("a"))
	const first = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	whole := first + strings.TrimPrefix(fmt.Sprintf(watchConfig, "nftables"), first)
	whole = strings.Replace(whole, "\nclusterCIDR: 10.244.0.0/16", "", 1) + "clusterCIDR: 10.244.0.0/16"
	w.write("config", whole)
	w.start("proxyc", "watch")
	w.until("the file without a line break at its end", synced)
	writeInPlace := func(text string) {
		t.Helper()
		must(t, os.WriteFile(w.file("config"), []byte(text), 0o644))
	}
	inForce := func(what, cidr string) {
		t.Helper()
		w.until(what, func(st status.Status) bool {
			return synced(st) && len(st.Rejected) == 0 && strings.Contains(w.rules(), cidr)
		})
	}
	for what, cut := range map[string]string{"in a line": whole[:len(whole)-1], "behind a line": first} {
		writeInPlace(cut)
		w.until("refused, as it is cut off "+what, func(st status.Status) bool {
			return synced(st) && st.Mode == "nftables" && len(st.Rejected) == 1 && strings.Contains(st.Rejected[0].Reason, "truncated")
		})
		if !strings.Contains(w.rules(), "10.244.0.0/16") {
			t.Errorf("in force, though cut off %s:\n%s", what, w.rules())
		}
		writeInPlace(whole)
		inForce("the whole file", "10.244.0.0/16")
	}
	writeInPlace(whole[:len(whole)-1] + "\n")
	inForce("the same that is meant, as it has a line break", "0.0.0.0/1")
	w.write("config", strings.TrimSuffix(whole, "clusterCIDR: 10.244.0.0/16"))
	inForce("another file without the last line", "ip proxyc")
	w.until("no pod range", func(st status.Status) bool { return synced(st) && !strings.Contains(w.rules(), "10.244.0.0") })
}

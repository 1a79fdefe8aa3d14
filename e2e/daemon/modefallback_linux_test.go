package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/ir"
)

// Without ip_vs in the kernel, mode ipvs ends with an error, or, if configured, falls back to mode
// iptables. The status then shows the reason.
func TestWatchModeFallback(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Skip("the kernel has ip_vs")
	}
	w := newWatched(t, "iptables-nft")
	w.Write("config", fmt.Sprintf(nodetest.Config, "ipvs"))
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Args = append(w.Args, "--mode-fallback")
	w.Start("proxyc", "watch")
	st := w.Until("first sync", nodetest.Synced)
	if st.Mode != ir.ModeIPTables || st.InsteadOf != ir.ModeIPVS || !strings.Contains(st.InsteadOfReason, "ip_vs") {
		t.Errorf("mode %s instead of %q: %s", st.Mode, st.InsteadOf, st.InsteadOfReason)
	}
	if rules := w.Rules(); !strings.Contains(rules, "10.96.0.97/32") {
		t.Errorf("no rules of iptables:\n%s", rules)
	}
}

package daemon

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// Owned tables through a daemon's life: others cannot change them, the daemon can, in a
// life with another configuration as well; they outlive it, the next one adopts them, and
// one that wants no owner takes them, too.
func TestWatchOwnsTables(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	tell := func(name string, args ...string) (string, error) {
		out, err := w.NS.Run(w.NS.Command(t.Context(), name, args...))
		return fmt.Sprintf("%s%v", out, err), err
	}
	args := append([]string{"watch"}, "--nftables-owner")
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", args...)
	w.Until("first sync", nodetest.Synced)
	if strings.Contains(w.Log.String(), "no tables with an owner") {
		t.Skip("the kernel knows none")
	}
	refused := func() {
		t.Helper()
		if reported, err := tell("nft", "flush", "table", "ip", "proxyc"); err == nil || !w.Has("a") {
			t.Errorf("nft flushes the table of a daemon: %s", reported)
		}
		if reported, err := tell("nft", "flush", "ruleset"); err != nil || !w.Has("a") {
			t.Errorf("nft flushes all: %s", reported)
		}
	}
	refused()
	if reported, err := tell("proxyc", "cleanup"); err == nil || !strings.Contains(reported, "held by process") || !w.Has("a") {
		t.Errorf("cleanup beside the daemon: %s", reported)
	}
	if reported, err := tell("proxyc", append([]string{"apply", "--check"}, w.Args...)...); err != nil {
		t.Errorf("a check beside the daemon: %s", reported)
	}
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Holds(5e9, "b", true)
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "nftables: {", "nftables: {syncPeriod: 31s, ", 1))
	w.Until("another life", func(st status.Status) bool {
		return nodetest.Synced(st) && strings.Count(w.Log.String(), `kind="full"`) > 1
	})
	refused()

	w.Stop(syscall.SIGKILL)
	if !w.Has("a") || !w.Has("b") {
		t.Fatal("the rules went with the daemon")
	}
	w.Start("proxyc", args...)
	if st := w.Until("the next daemon", nodetest.Synced); st.Operations != (apply.Count{Changed: 2}) {
		t.Errorf("the next daemon: %s, want both tables adopted, and nothing else", st.Operations)
	}
	refused()
	w.Stop(syscall.SIGTERM)
	w.Start("proxyc", "watch")
	w.Until("a daemon that wants no owner", nodetest.Synced)
	w.Stop(syscall.SIGTERM)
	if reported, err := tell("proxyc", "cleanup"); err != nil || w.Has("a") {
		t.Errorf("cleanup: %s", reported)
	}
}

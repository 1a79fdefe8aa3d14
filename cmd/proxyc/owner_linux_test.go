package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// Owned tables through a daemon's life: others cannot change them, the daemon can, in a
// life with another configuration as well; they outlive it, the next one adopts them, and
// one that wants no owner takes them, too.
func TestWatchOwnsTables(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	tell := func(name string, args ...string) (string, error) {
		out, err := w.ns.Run(w.ns.Command(t.Context(), name, args...))
		return fmt.Sprintf("%s%v", out, err), err
	}
	args := append([]string{"watch"}, "--nftables-owner")
	w.write("cluster.yaml", applytest.Services("a"))
	w.start("proxyc", args...)
	w.until("first sync", synced)
	if strings.Contains(w.log.String(), "no tables with an owner") {
		t.Skip("the kernel knows none")
	}
	refused := func() {
		t.Helper()
		if reported, err := tell("nft", "flush", "table", "ip", "proxyc"); err == nil || !w.has("a") {
			t.Errorf("nft flushes the table of a daemon: %s", reported)
		}
		if reported, err := tell("nft", "flush", "ruleset"); err != nil || !w.has("a") {
			t.Errorf("nft flushes all: %s", reported)
		}
	}
	refused()
	if reported, err := tell("proxyc", "cleanup"); err == nil || !strings.Contains(reported, "held by process") || !w.has("a") {
		t.Errorf("cleanup beside the daemon: %s", reported)
	}
	if reported, err := tell("proxyc", append([]string{"apply", "--check"}, w.args...)...); err != nil {
		t.Errorf("a check beside the daemon: %s", reported)
	}
	w.write("cluster.yaml", applytest.Services("a", "b"))
	w.holds(5e9, "b", true)
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "nftables"), "nftables: {", "nftables: {syncPeriod: 31s, ", 1))
	w.until("another life", func(st status.Status) bool { return synced(st) && strings.Count(w.log.String(), `kind="full"`) > 1 })
	refused()

	w.stop(syscall.SIGKILL)
	if !w.has("a") || !w.has("b") {
		t.Fatal("the rules went with the daemon")
	}
	w.start("proxyc", args...)
	if st := w.until("the next daemon", synced); st.Operations != (apply.Count{Changed: 2}) {
		t.Errorf("the next daemon: %s, want both tables adopted, and nothing else", st.Operations)
	}
	refused()
	w.stop(syscall.SIGTERM)
	w.start("proxyc", "watch")
	w.until("a daemon that wants no owner", synced)
	w.stop(syscall.SIGTERM)
	if reported, err := tell("proxyc", "cleanup"); err != nil || w.has("a") {
		t.Errorf("cleanup: %s", reported)
	}
}

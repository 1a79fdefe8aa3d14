package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// SIGHUP, which ends kube-proxy, makes the daemon read its files at once, even one that a writer
// has open, for which it would otherwise wait.
func TestWatchHangup(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", applytest.Services("a"))
	w.start("proxyc", "watch")
	first := w.until("first sync", synced)
	file, err := os.OpenFile(w.file("cluster.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(applytest.Services("b")); err != nil {
		t.Fatal(err)
	}
	w.process.Signal(syscall.SIGHUP)
	w.holds(3*time.Second, "b", true)
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "nftables"), "10.244.0.0/16", "10.245.0.0/16", 1))
	w.process.Signal(syscall.SIGHUP)
	st := w.until("the other configuration", func(st status.Status) bool {
		return synced(st) && strings.Contains(w.rules(), "10.245.0.0/16")
	})
	if st.PID != first.PID {
		t.Errorf("process %d became %d", first.PID, st.PID)
	}
}

// The status reports a probe port that another program uses and an invalid snapshot, and exits with
// 1. The rules continue to be updated.
func TestWatchStatusIsNotWell(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", applytest.Services("a"))
	w.serve("127.0.0.1:10256")
	w.start("proxyc", "watch")
	w.until("first sync", synced)
	says := func(what string, code int, text string) {
		t.Helper()
		within(w, 20*time.Second, what, func() (struct{}, bool) {
			cmd := w.ns.Command(context.Background(), "proxyc", "status")
			out, err := w.ns.Run(cmd)
			return struct{}{}, (err == nil) == (code == 0) && strings.Contains(string(out), text) && strings.Contains(string(out), "synced       yes")
		})
	}
	says("the port", 1, "not served   healthz server at 0.0.0.0:10256, since ")
	w.write("cluster.yaml", applytest.Services("b"))
	w.holds(5*time.Second, "b", true)
	w.write("config", strings.Replace(fmt.Sprintf(watchConfig, "nftables"), "\nclusterCIDR", "\nhealthzBindAddress: 127.0.0.1:10257\nclusterCIDR", 1))
	says("a free port", 0, "synced")
	w.write("cluster.yaml", "")
	says("the refused file", 1, "invalid      the newest version of "+w.file("cluster.yaml"))
	w.write("cluster.yaml", strings.TrimSuffix(applytest.Services("c"), "\n"))
	says("the file that was cut off", 1, "may be cut off: it ends in the middle of a line")
	w.write("cluster.yaml", applytest.Services("c"))
	says("the whole file", 0, "synced")
	w.holds(5*time.Second, "c", true)
}

package main

import (
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

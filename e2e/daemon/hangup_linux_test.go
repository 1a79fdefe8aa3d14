package daemon

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// SIGHUP, which ends kube-proxy, makes the daemon read its files at once, even one that a writer
// has open, for which it would otherwise wait.
func TestWatchHangup(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch")
	first := w.Until("first sync", nodetest.Synced)
	file, err := os.OpenFile(w.File("cluster.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(applytest.Services("b")); err != nil {
		t.Fatal(err)
	}
	w.Process.Signal(syscall.SIGHUP)
	w.Holds(3*time.Second, "b", true)
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "10.244.0.0/16", "10.245.0.0/16", 1))
	w.Process.Signal(syscall.SIGHUP)
	st := w.Until("the other configuration", func(st status.Status) bool {
		return nodetest.Synced(st) && strings.Contains(w.Rules(), "10.245.0.0/16")
	})
	if st.PID != first.PID {
		t.Errorf("process %d became %d", first.PID, st.PID)
	}
}

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// fullRun has a command run where /run has no space for another file.
const fullRun = `mount -t tmpfs -o size=1m,nr_inodes=2,mode=755 tmpfs /run && mkdir -m 700 /run/proxyc && exec proxyc "$@"`

// If there is no space for the lock file, doctor reports that, and reports no mode as broken. The
// daemon retries until there is space.
func TestNoSpaceForLock(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", applytest.Services("a"))
	out, err := w.ns.Run(w.ns.Command(t.Context(), "unshare", "--mount", "sh", "-c", fullRun, "sh", "doctor", "-c", w.file("config"), "--hostname-override", "node1", "--try", "nftables"))
	if err == nil || !strings.Contains(string(out), "error    lock: cannot be written, ") || !strings.Contains(string(out), "no space left on device\n         → free space in /run\n") || strings.Contains(string(out), "mode nftables") {
		t.Errorf("doctor: %v\n%s", err, out)
	}

	w.start("unshare", "--mount", "sh", "-c", fullRun, "sh", "watch")
	const again = `"the lock file cannot be written: retrying for 1m0s"`
	within(w, 20*time.Second, "the warning", func() (struct{}, bool) { return struct{}{}, strings.Contains(w.log.String(), again) })
	if out, err := w.ns.Run(w.ns.Command(t.Context(), "nsenter", "--mount", "--target", fmt.Sprint(w.process.Pid), "mount", "-o", "remount,nr_inodes=100", "/run")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.until("the first sync", synced)
	if n := strings.Count(w.log.String(), again); n != 1 {
		t.Errorf("reported %d times, want once", n)
	}
}

package daemon

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// fullRun has a command run where /run has no space for another file.
const fullRun = `mount -t tmpfs -o size=1m,nr_inodes=2,mode=755 tmpfs /run && mkdir -m 700 /run/proxyc && exec proxyc "$@"`

// If /run is read-only, every writing command names the fix, and cleanup can at least show what it
// would remove.
func TestReadOnlyLock(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(applytest.Services("a"))
	w.Stop(syscall.SIGTERM)
	const readOnlyRun = `mount -t tmpfs -o ro,mode=755 tmpfs /run && exec proxyc "$@"`
	for _, verb := range [][]string{{"cleanup"}, append([]string{"apply"}, w.Args...), append([]string{"watch"}, w.Args...)} {
		out, code := w.Run("unshare", append([]string{"--mount", "sh", "-c", readOnlyRun, "sh"}, verb...)...)
		if want := "lock: mkdir /run/proxyc: read-only file system: mount /run/proxyc writable; "; code != nodetest.ExitBad || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d, want %q in:\n%s", verb[0], code, want, out)
		}
	}
	if out, code := w.Run("unshare", "--mount", "sh", "-c", readOnlyRun, "sh", "cleanup", "--dry-run"); code != 0 || !strings.Contains(out, "remove table ip proxyc\n") {
		t.Errorf("cleanup --dry-run: exit %d:\n%s", code, out)
	}
}

// If there is no space for the lock file, doctor reports that, and reports no mode as broken. The
// daemon ends with the reason.
func TestNoSpaceForLock(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	out, err := w.NS.Run(w.NS.Command(t.Context(), "unshare", "--mount", "sh", "-c", fullRun, "sh", "doctor", "-c", w.File("config"), "--hostname-override", "node1", "--try", "nftables"))
	if err == nil || !strings.Contains(string(out), "error    lock: cannot be written, ") || !strings.Contains(string(out), "no space left on device\n         → free space in /run\n") || strings.Contains(string(out), "mode nftables:") {
		t.Errorf("doctor: %v\n%s", err, out)
	}

	w.Start("unshare", "--mount", "sh", "-c", fullRun, "sh", "watch")
	if w.fails(); !strings.Contains(w.Log.String(), "no space left on device") {
		t.Error("the reason is not logged")
	}
}

// If the directory of the lock that a pod mounts was removed, nothing can be created there. The daemon
// reports that, and its rules still follow the cluster.
func TestLockDirectoryRemoved(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	if err := os.Mkdir(w.File("run"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.Start("unshare", "--mount", "sh", "-c", `mount -t tmpfs -o mode=755 tmpfs /run && mkdir -m 700 /run/proxyc && mount --bind "$0" /run/proxyc && exec proxyc "$@"`, w.File("run"), "watch")
	w.Until("first sync", nodetest.Synced)
	if err := os.RemoveAll(w.File("run")); err != nil {
		t.Fatal(err)
	}
	applytest.Until(t, 0, "the removal is reported", func() bool { return strings.Contains(w.Log.String(), "the files in /run/proxyc were removed") })
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Holds(0, "b", true)
}

package daemon

import (
	"regexp"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// TestSnapshotLive saves a daemon's objects. They compile to the same rules as the daemon's own files,
// also after a change. A redacted snapshot contains no original name.
func TestSnapshotLive(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Args = append(w.Args, "--status-socket", w.File("socket"))
	run := func(args ...string) string {
		t.Helper()
		out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", args...))
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	// take gives what proxyc says of the node, as flags.
	take := func(more ...string) []string {
		t.Helper()
		script := append([]string{"-c", `exec proxyc snapshot --live "$@" 2>&1 >/dev/null`, "sh", "--status-socket", w.File("socket"),
			"-o", w.File("live.json"), "--config-out", w.File("live.yaml")}, more...)
		out, err := w.NS.Run(w.NS.Command(t.Context(), "sh", script...))
		if err != nil {
			t.Fatal(err)
		}
		flags := regexp.MustCompile(`(?m)^flags for the node: (.*)$`).FindSubmatch(out)
		if flags == nil {
			t.Fatalf("no flags of the node: %s", out)
		}
		return strings.Fields(string(flags[1]))
	}
	compiled := func(config, snapshot string, flags []string) string {
		t.Helper()
		return run(append([]string{"compile", "-c", w.File(config), "-s", w.File(snapshot), "-o", "nftables"}, flags...)...)
	}
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Start("proxyc", "watch")
	w.Until("first sync", func(st status.Status) bool { return nodetest.Synced(st) && w.Has("b") })
	for _, names := range [][]string{{"a", "b"}, {"b", "c"}} {
		w.Write("cluster.yaml", applytest.Services(names...))
		w.Until("the Services", func(st status.Status) bool {
			return nodetest.Synced(st) && w.Has(names[0]) && w.Has(names[1]) && w.Has("a") == (names[0] == "a")
		})
		flags := take()
		if want, got := compiled("config", "cluster.yaml", flags), compiled("live.yaml", "live.json", flags); got != want {
			t.Errorf("Services %s: the daemon's compile to\n%s\nwant\n%s", names, got, want)
		}
	}
	flags := take("--redact")
	rules := compiled("live.yaml", "live.json", flags)
	if strings.Contains(rules, "ns/") || strings.Contains(rules, "10.96.0.") || !strings.Contains(rules, "svc-1") {
		t.Errorf("redacted, the rules name what is the cluster's, or nothing:\n%s", rules)
	}
}

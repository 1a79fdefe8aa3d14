package replay_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m, nil) }

// With --netns the rules come into a namespace that has a name, and stay there; wherever
// the flag stands, and into no other one.
func TestReplayNetns(t *testing.T) {
	t.Parallel()
	nodetest.Program(t)
	ns := applytest.RequireNamespace(t)
	dir := t.TempDir()
	archive, err := txtar.ParseFile("../../../../testdata/script/replay.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name := named(t, ns)
	replay := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "proxyc", append([]string{"replay", "-c", "config.yaml", "--hostname-override", "node1", "-o", "none"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	rules := func() string {
		out, err := ns.Run(ns.Command(t.Context(), "nft", "list", "ruleset"))
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, wrong := range []string{"x/" + name, "../netns/" + name, name + "-none"} {
		if out, err := replay("run.jsonl", "--netns="+wrong); err == nil || !strings.Contains(out, "--netns: must name a network namespace, as created by ip netns add") {
			t.Errorf("--netns=%s: %v, %s", wrong, err, out)
		}
	}
	if text := rules(); text != "" {
		t.Fatalf("rules came from elsewhere:\n%s", text)
	}
	for _, args := range [][]string{{"run.jsonl", "--netns", name, "--until", "1.5s"}, {"--netns", name, "--", "run.jsonl"}} {
		if out, err := replay(args...); err != nil {
			t.Errorf("%s: %v: %s", args, err, out)
		}
		last := "10.244.1.11 . 8080"
		if args[0] != "run.jsonl" {
			last = "10.244.1.12 . 8080"
		}
		if text := rules(); !strings.Contains(text, "table ip proxyc") || !strings.Contains(text, last) {
			t.Errorf("%s: no %s in\n%s", args, last, text)
		}
	}
}

// named gives a namespace a name, as ip netns does, until the test ends.
func named(t *testing.T, ns *applytest.Namespace) string {
	t.Helper()
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp("/run/netns", "proxyc-test-")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), f.Name(), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(f.Name(), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return filepath.Base(f.Name())
}

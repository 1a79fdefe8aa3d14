package applytest

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNamespaceIsolation checks that actions inside a namespace are not visible outside.
func TestNamespaceIsolation(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	home := netnsOf(t)
	ns, err := NewNamespace("apart")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.AddBridge("br0"); err != nil {
		t.Fatal(err)
	}
	var inside string
	if err := ns.Do(func() error { inside = netnsOf(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside == home {
		t.Errorf("Do ran in the namespace of the test, %s", home)
	}
	if diff := cmp.Diff(home, netnsOf(t)); diff != "" {
		t.Errorf("the test is in another namespace than before (-want +got):\n%s", diff)
	}
	out, err := ns.Run(ns.Command(context.Background(), "ls", "/proc/self/ns/net", "-l"))
	if err != nil || !strings.Contains(string(out), inside) {
		t.Errorf("command ran in %s, %v; want %s", out, err, inside)
	}
	if _, err := os.Stat("/sys/class/net/br0"); err == nil {
		t.Error("the bridge is visible outside")
	}
}

func netnsOf(t *testing.T) string {
	t.Helper()
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return link
}

package applytest

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestConnections checks that an undisturbed connection has no failure, and that a reset one is
// reported.
func TestConnections(t *testing.T) {
	t.Parallel()
	topo := TopologyFor(t)
	kept := Probe{"pod1b", "tcp", netip.MustParseAddrPort("10.244.1.10:80")}
	broken := Probe{"ext", "tcp", netip.MustParseAddrPort("10.244.2.10:80")}
	open, err := topo.StartConnections(10*time.Millisecond, kept, broken)
	if err != nil {
		t.Fatal(err)
	}
	node := topo.Namespace("node2")
	cmd := node.Command(context.Background(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table ip byhand { chain c { type filter hook forward priority 0; tcp dport 80 reject with tcp reset; }; }")
	if _, err := node.Run(cmd); err != nil {
		t.Fatal(err)
	}
	Until(t, 2*time.Minute, "a failure", func() bool {
		open.mu.Lock()
		defer open.mu.Unlock()
		return len(open.failures) > 0
	})
	asked, failures := open.Stop()
	if asked < 2 || len(failures) != 1 || failures[0].Probe != broken || failures[0].Why != WasReset {
		t.Errorf("%d queries, failures %v; want %s alone, %s", asked, failures, broken, WasReset)
	}
}

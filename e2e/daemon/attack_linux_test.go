package daemon

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// Idle connections do not use up the file descriptors that a process needs to answer probes and to
// write rules, even at a low limit.
func TestWatchFewFiles(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"nftables", "iptables-legacy"} {
		t.Run(plane, func(t *testing.T) {
			w := newWatched(t, plane)
			w.Write("cluster.yaml", applytest.Services("a"))
			w.Start("sh", "-c", `ulimit -n 64; exec proxyc watch "$@"`, "sh")
			w.Until("first sync", nodetest.Synced)
			for range 100 {
				for _, port := range []int{nodetest.HealthPort, nodetest.MetricsPort} {
					if err := w.NS.Do(func() error {
						conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second)
						if err == nil {
							t.Cleanup(func() { conn.Close() })
						}
						return err
					}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 10 {
				if code, body, err := w.Get(nodetest.HealthPort, "/livez"); err != nil || code != http.StatusOK {
					t.Fatalf("/livez: %d %v %s", code, err, body)
				}
			}
			w.Write("cluster.yaml", applytest.Services("a", "b"))
			w.Holds(20*time.Second, "b", true)
		})
	}
}

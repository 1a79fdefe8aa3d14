//go:build unix

package serve

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// The health check node ports of Services cannot use up the process's files. A removed one makes
// room for another.
func TestHealthChecksFewFiles(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := syscall.Rlimit{Cur: 512, Max: was.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
	const most = 512 / socketPart
	failed := 0
	c := &HealthChecks{Family: ir.IPv4, Health: NewHealth(timeout, newClock().now), Log: quiet(),
		Failed: func(_ ir.Name, _ uint16, err error) {
			if t.Log(err); err != nil {
				failed++
			}
		}}
	t.Cleanup(c.Close)
	checks := map[ir.Name]ir.HealthCheck{}
	for i := range most + 1 { // port 0: any
		checks[ir.Name{Namespace: "ns", Name: fmt.Sprintf("s%03d", i)}] = ir.HealthCheck{}
	}
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	c.Sync(loopback, checks)
	if failed != 1 || len(c.open) != most {
		t.Errorf("%d listen and %d failed, want %d and 1", len(c.open), failed, most)
	}
	c.Change(map[ir.Name]*ir.HealthCheck{{Namespace: "ns", Name: "s000"}: nil})
	if failed != 1 || len(c.open) != most || len(c.failed) != 0 {
		t.Errorf("after one went: %d listen and %d failed, want %d and 1", len(c.open), failed, most)
	}
}

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// peak returns the peak memory of a process so far, in bytes.
func peak(t *testing.T, pid int) (bytes int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(after, &bytes); err != nil {
		t.Fatalf("VmHWM: %v", err)
	}
	return bytes << 10
}

// withRace reports whether the race detector, which takes memory, is in the program.
func withRace() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}

// Ten thousand open connections with unfinished headers exhaust neither the memory of a small pod
// nor delay the answers of probes.
func TestWatchManyConnections(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20 // bytes: what docs/deploy asks for
	connections := max(2500, applytest.Fewer(10_000))
	most := syscall.Rlimit{Cur: 20_000, Max: 20_000}
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &most))
	w := newWatched(t, "nftables")
	w.sync(applytest.Services("a"))
	before := peak(t, w.process.Pid)
	header := "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 900<<10)
	var writing sync.WaitGroup
	defer writing.Wait()
	for i := range connections {
		var conn net.Conn
		if err := w.ns.Do(func() (err error) {
			conn, err = net.Dial("tcp", "127.0.0.1:10256")
			return err
		}); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer conn.Close()
		writing.Go(func() {
			conn.SetWriteDeadline(time.Now().Add(time.Second)) // the daemon closed the connection or no longer reads
			io.WriteString(conn, header)
		})
		if i%500 != 0 {
			continue
		}
		if code := w.ask(t, "127.0.0.1:10256", "/livez"); code != http.StatusOK {
			t.Errorf("/livez beside %d connections: %d", i, code)
		}
	}
	after := peak(t, w.process.Pid)
	t.Logf("peak memory: %d MiB before, %d MiB after", before>>20, after>>20)
	if after > limit && !withRace() {
		t.Errorf("%d MiB, want at most %d", after>>20, limit>>20)
	}
}

// Idle connections do not use up the file descriptors that a process needs to answer probes and to
// write rules, even at a low limit.
func TestWatchFewFiles(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"nftables", "iptables-legacy"} {
		t.Run(plane, func(t *testing.T) {
			w := newWatched(t, plane)
			w.write("cluster.yaml", applytest.Services("a"))
			w.start("sh", "-c", `ulimit -n 64; exec proxyc watch "$@"`, "sh")
			w.until("first sync", synced)
			for range 100 {
				for _, port := range []int{healthPort, metricsPort} {
					if err := w.ns.Do(func() error {
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
				if code, body, err := w.get(healthPort, "/livez"); err != nil || code != http.StatusOK {
					t.Fatalf("/livez: %d %v %s", code, err, body)
				}
			}
			w.write("cluster.yaml", applytest.Services("a", "b"))
			w.holds(20*time.Second, "b", true)
		})
	}
}

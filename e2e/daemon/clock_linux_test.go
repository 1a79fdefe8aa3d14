package daemon

import (
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// setsClock is the environment variable that allows tests to set the clock of the machine. Use it
// only on a disposable machine.
const setsClock = "PROXYC_SETS_CLOCK"

// machineClock is the system clock.
type machineClock struct{ t *testing.T }

// add changes the clock by d, which can be negative.
func (c machineClock) add(d time.Duration) {
	c.t.Helper()
	tv := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		c.t.Fatal(err)
	}
}

// After any change of the node's clock, a running daemon follows its source, repairs rules, and
// reports ages by elapsed time. A new daemon adopts the state of the previous one, even with times
// in the future.
func TestWatchClockIsSet(t *testing.T) {
	t.Parallel()
	if os.Getenv(setsClock) == "" {
		t.Skip("sets the clock of the machine: run by make test-vm")
	}
	clock := machineClock{t}
	w := newWatched(t, "nftables")
	w.Args = append(w.Args, "--boot-from", w.File("boot"))
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch")
	began := time.Now()
	w.Until("first sync", nodetest.Synced)
	const year = 365 * 24 * time.Hour
	names := "bcdefgh"
	for i, jump := range []time.Duration{year, -2 * year, year, 10 * time.Second, -20 * time.Second, time.Hour} {
		clock.add(jump)
		name := names[i : i+1]
		w.Write("cluster.yaml", applytest.Services(name))
		w.Holds(10*time.Second, name, true)
		w.NS.Run(w.NS.Command(t.Context(), "nft", "flush", "chain", "ip", "proxyc", "services"))
		st := w.Until("a repair after "+jump.String(), func(st status.Status) bool {
			return nodetest.Synced(st) && st.LastDrift != nil && w.Has(name) && st.LastSync.Equal(st.LastDrift.At)
		})
		passed := time.Since(began) // by the monotonic clock
		for what, at := range map[string]time.Time{"start": st.Started, "last sync": st.LastSync, "last drift": st.LastDrift.At} {
			if age := st.Now.Sub(at); age < 0 || age > passed+time.Minute {
				t.Errorf("after %s the status says that the %s was %s ago; %s have passed", jump, what, age, passed)
			}
		}
		if off := time.Since(st.Now.Round(0)).Abs(); off > time.Minute {
			t.Errorf("after %s the status says that it is %s, which is %s off", jump, st.Now, off)
		}
		if lately := st.LastDrift.Recent; lately < 1 || lately > i+1 {
			t.Errorf("after %s the status counts %d repairs in the last minute of %d in all", jump, lately, i+1)
		}
		st.LastDrift.Recent = 1 // repeated drift is expected: the test causes it
		if !st.Healthy() {
			t.Errorf("after %s the status is not well: %+v", jump, st)
		}
	}
	for _, jump := range []time.Duration{-year, 2 * year} {
		w.Stop(syscall.SIGTERM)
		clock.add(jump)
		w.Start("proxyc", "watch")
		w.Until("the first sync of another start", nodetest.Synced)
		w.Holds(10*time.Second, "g", true)
	}
}

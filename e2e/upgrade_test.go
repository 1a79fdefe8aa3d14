package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

var previousFlag = flag.String("previous", "", "revision to upgrade from and downgrade to; the release before this one when empty")

// TestUpgrade upgrades from the previous release to this one, downgrades, and restarts each,
// while Services change and are queried. No open or new connection fails. Each release takes over
// what the other left in the kernel, and reads what it left on the disk. With that alone it
// serves a node that starts without an API server.
func TestUpgrade(t *testing.T) {
	applytest.RequireRoot(t)
	t.Parallel()
	previous, commit, err := kube.Previous(t.Context(), t.TempDir(), *previousFlag)
	if kube.NoHistory(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for plane := range planes {
		t.Run(plane, func(t *testing.T) {
			if plane != "nftables" {
				applytest.Long(t)
			}
			parallel(t)
			u := newUpgraded(t, plane)
			steady := some(0, 3, "pod1a", "pod2a")
			u.set(append(some(3, manyServices, "pod1a"), steady...)...)
			u.begin(previous)
			_, end := u.load(steady...)
			for _, next := range []string{proxyc, proxyc, previous, previous, proxyc} {
				u.swap(next)
			}
			end()
			u.reboot(previous)
			u.reboot(proxyc)
			t.Logf("from and to commit %s", commit)
		})
	}
}

// upgraded is an environment that runs two versions of the daemon, one after the other.
type upgraded struct {
	*testEnv
	boot    string
	changed int // Services, so far
	starts  int
}

func newUpgraded(t *testing.T, plane string) *upgraded {
	u := &upgraded{testEnv: newTestEnv(t, plane)}
	u.boot = u.dir + "/boot"
	u.args = append(u.args, "--iptables-min-sync-period", "100ms")
	return u
}

// begin starts a version, and waits until everything is in force.
func (u *upgraded) begin(binary string) {
	u.t.Helper()
	u.starts++
	u.binary = binary
	u.launch(binary, u.command(u.t, append(u.args, "--boot-from", u.boot)...)...)
	u.converges(20*time.Second, "start of "+binary)
}

// swap stops the running version and starts another. Services change before, between and after.
func (u *upgraded) swap(binary string) {
	u.t.Helper()
	u.change()
	if u.binary != proxyc { // may be a version whose boot file is rejected after a stop during a commit
		u.converges(10*time.Second, "a change before the stop")
	}
	if _, err := u.proxy.Stop(); err != nil {
		u.t.Error(err)
	}
	u.change()
	u.begin(binary)
	u.read()
	u.change()
	u.converges(10*time.Second, "a change under "+binary)
}

// change changes the endpoints of a Service, removes one, and adds one.
func (u *upgraded) change() {
	u.t.Helper()
	n := 3 + 2*u.changed
	u.changed++
	u.set(some(n, n+1, "pod1c", "pod2b")...)
	u.unset(some(n+1, n+2)...)
	u.set(some(manyServices+u.changed, manyServices+u.changed+1, "pod2c")...)
}

// read checks that each start except the first applied the boot file, which the daemon logs after the kernel has the rules.
func (u *upgraded) read() {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), applytest.ScaledTimeout(10*time.Second))
	defer cancel()
	err := kube.Until(ctx, 20*time.Millisecond, func(context.Context) error {
		log, err := os.ReadFile(u.proxy.Log)
		if err != nil {
			return err
		}
		if got := strings.Count(string(log), `from="the boot file `); got != u.starts-1 { // in the words of both versions
			return fmt.Errorf("of %d boot files %d were put in force:\n%s", u.starts-1, got, u.proxy.Tail())
		}
		return nil
	})
	if err != nil {
		u.t.Fatal(err)
	}
}

// reboot starts a version on a node without rules, and without a way to the API server.
func (u *upgraded) reboot(binary string) {
	u.t.Helper()
	if _, err := u.proxy.Stop(); err != nil {
		u.t.Error(err)
	}
	u.empty()
	if _, err := u.check("apply", "--check"); err == nil {
		u.t.Fatal("the rules exist, but nothing has written them")
	}
	u.gate.Shut()
	u.begin(binary)
	u.read()
	if _, err := u.topo.Try("pod1b", "tcp", 0, some(0, 1)[0].vip(), applytest.ReplyTimeout); err != nil {
		u.t.Error(err)
	}
	u.gate.Open()
	u.change()
	u.converges(catchUp, "a change after the API server is back")
}

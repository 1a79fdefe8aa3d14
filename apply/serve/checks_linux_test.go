package serve

import (
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// A server whose socket fails is reported and started again, without a change and by a change.
func TestCheckEnded(t *testing.T) {
	c, _ := newChecks(t, ir.IPv4)
	reports := make(chan error, 10)
	c.Failed = func(_ ir.Name, _ uint16, err error) { reports <- err }
	port := freePort(t)
	want := checks{web: {Port: port, Local: 1}}
	c.Sync(loopback, want)
	for name, startAgain := range map[string]func(){"Change": func() { c.Change(nil) }, "Sync": func() { c.Sync(loopback, want) }} {
		shutDown(t, netip.AddrPortFrom(loopback[0], port))
		if err := <-reports; err == nil || c.Failing() == "" {
			t.Errorf("ended: reported %v, failing: %q", err, c.Failing())
		}
		wantWeights(t, "ended", map[uint16]int{port: -1})
		startAgain()
		if err := <-reports; err != nil || c.Failing() != "" {
			t.Errorf("started again by %s: reported %v, failing: %q", name, err, c.Failing())
		}
		wantWeights(t, "started again by "+name, map[uint16]int{port: 1})
	}
}

// shutDown makes the socket of this process that listens at an address fail.
func shutDown(t *testing.T, at netip.AddrPort) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range open {
		fd, err := strconv.Atoi(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil || listens == 0 {
			continue
		}
		name, err := unix.Getsockname(fd)
		if in4, ok := name.(*unix.SockaddrInet4); err == nil && ok && in4.Port == int(at.Port()) && in4.Addr == at.Addr().As4() {
			if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("nothing listens at %s", at)
}

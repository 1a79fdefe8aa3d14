package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// onFullDisk runs a program with a file on a full file system. Its arguments are the directory,
// the initial file, and the program.
const onFullDisk = `mount -t tmpfs -o size=1m tmpfs "$0" && cp "$1" "$0"/boot && { cat /dev/zero >"$0"/fill 2>/dev/null; shift; exec "$@"; }`

// TestBootDiskFull checks a boot file that cannot be written. The old one stays complete, and
// serves a start without the API server. The daemon logs the error and continues, and writes the
// file once there is space.
func TestBootDiskFull(t *testing.T) {
	parallel(t)
	s := newTestEnv(t, "nftables")
	s.set(some(0, 10, "pod1a", "pod2a")...)
	boot, disk := filepath.Join(s.dir, "boot"), t.TempDir()
	s.start("--boot-from", boot)
	s.converges(10*time.Second, "start")
	var old []byte
	eventually(t, 10*time.Second, "the boot file", func() (err error) {
		old, err = os.ReadFile(boot)
		return err
	})
	s.kill()
	if _, err := s.Run(s.Command(t.Context(), "nft", "flush", "ruleset")); err != nil {
		t.Fatal(err)
	}

	s.gate.Shut()
	s.set(some(10, 20, "pod1a")...)
	s.launch("unshare", append([]string{"-m", "sh", "-c", onFullDisk, disk, boot, proxyc},
		s.command(t, append(s.args, "--boot-from", filepath.Join(disk, "boot"))...)...)...)
	eventually(t, 10*time.Second, "the boot file is in force", func() error {
		_, err := s.topo.Try("pod1b", "tcp", 0, numbered{n: 3}.vip(), time.Second)
		return err
	})
	seen, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root%s", s.proxy.Pid(), disk))
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Close()
	s.gate.Open()
	s.converges(catchUp, "the API server's Services")
	eventually(t, 10*time.Second, "an error in the log", func() error {
		if tail := s.proxy.Tail(); !strings.Contains(tail, "no space left on device") {
			return fmt.Errorf("it has only:\n%s", tail)
		}
		return nil
	})
	if now, err := seen.ReadFile("boot"); err != nil || string(now) != string(old) {
		t.Errorf("the old boot file is not whole: %v", err)
	}
	s.set(some(20, 25, "pod1a")...)
	s.converges(5*time.Second, "a change after the error")

	if err := seen.Remove("fill"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.proxy.Stop(); err != nil {
		t.Error(err)
	}
	now, err := seen.ReadFile("boot")
	if err != nil || !strings.Contains(string(now), numbered{n: 24}.name()) {
		t.Errorf("there is space again, but the last Service is not in the boot file: %v", err)
	}
}

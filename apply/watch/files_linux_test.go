package watch

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

// A file that is a mount is read again when its source is written in place, which the directory of
// the mount does not report. It may be named, or be in a named directory.
func TestFilesMounted(t *testing.T) {
	applytest.RequireRoot(t)
	for _, path := range []func(string) string{filepath.Clean, filepath.Dir} {
		source, mount := filepath.Join(t.TempDir(), "source.yaml"), filepath.Join(t.TempDir(), "mount.yaml")
		write(t, source, serviceYAML("a", "10.0.0.1"))
		write(t, mount, "")
		if err := unix.Mount(source, mount, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		g := &follower{t: t, API: &API{Store: NewStore(time.Now)}}
		runFiles(t, pollingFiles(t, g.Store, path(mount)), func(error) {})
		g.until(has("a"))
		for _, name := range []string{"b", "c"} {
			write(t, source, serviceYAML(name, "10.0.0.2"))
			g.until(has(name))
		}
	}
}

package serve

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false) // as left by a process that was killed
	stale.Close()

	l, err := ListenUnix(t.Context(), path)
	if err != nil {
		t.Fatalf("where a dead process listened: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
	if _, err := ListenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another process answers") {
		t.Errorf("where somebody answers: %v", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("after somebody else tried: %v", err)
	}
	conn.Close()
	l.Close()
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}

	for _, file := range []string{path + ".next", path} {
		if err := os.WriteFile(file, []byte("precious"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ListenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), file+": must be free or a socket") {
			t.Errorf("where a file is: %v", err)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != "precious" {
			t.Errorf("the file: %q, %v", data, err)
		}
	}
}

// The lock's directory can be missing at the first start of a node.
func TestListenUnixCreatesDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proxyc")
	l, err := ListenUnix(t.Context(), filepath.Join(dir, "status"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
}

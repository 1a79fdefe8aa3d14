//go:build unix

package watch

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Paths that are not regular files are logged once, and do not block the read.
func TestFilesNotRegular(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero.yaml")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), serviceYAML("a", "10.0.0.1"))
	var said lockedBuffer
	g := &follower{t: t, API: &API{Store: NewStore(time.Now)}}
	f := pollingFiles(t, g.Store, dir)
	f.Log = slog.New(slog.NewTextHandler(&said, nil))
	runFiles(t, f, func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	g.until(has("a"))
	write(t, filepath.Join(dir, "b.yaml"), serviceYAML("b", "10.0.0.2"))
	g.until(has("b"))
	for _, want := range []string{"path=" + pipe + ` is="a named pipe"`, `zero.yaml is="a device"`} {
		if n := strings.Count(said.String(), want); n != 1 {
			t.Errorf("%q is said %d times, want once:\n%s", want, n, said.String())
		}
	}
	if err := (&Files{Paths: []string{pipe}, Store: g.Store, Log: f.Log}).Read(); err == nil || !strings.Contains(err.Error(), "is a named pipe") {
		t.Errorf("a named pipe itself: %v", err)
	}
}

// A link to a missing file is an error: the Services of the file were not removed on purpose.
func TestFilesDangling(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "b.yaml")
	write(t, filepath.Join(dir, "a.yaml"), serviceYAML("a", "10.0.0.1"))
	write(t, to, serviceYAML("b", "10.0.0.2"))
	if err := os.Symlink(to, filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	f := &Files{Paths: []string{dir}, Store: NewStore(time.Now), Log: slog.New(slog.DiscardHandler), Report: func(diag.List, []*snapshot.Invalid) {}}
	if err := f.Read(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if err := f.Read(); err == nil || !strings.Contains(err.Error(), "b.yaml: is a link to a missing file") {
		t.Errorf("error %v", err)
	}
	f.Store.View(func(s *snapshot.Snapshot) {
		if !has("b")(s) {
			t.Error("the Service is gone")
		}
	})
}

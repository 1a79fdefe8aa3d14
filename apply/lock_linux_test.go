package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestLockNamesItsOwnerAndIsReleased(t *testing.T) {
	dir := t.TempDir()
	first, err := AcquireLock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := AcquireLock(ctx, dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("held by process %d", os.Getpid())) {
		t.Fatalf("second lock: want an error that names the owner, got %v", err)
	}
	got := make(chan error)
	go func() {
		second, err := AcquireLock(t.Context(), dir)
		if err == nil {
			err = second.Release()
		}
		got <- err
	}()
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("waiting for the lock: %v", err)
	}
}

// Nobody else can hold the lock, or give it another place.
func TestLockIsItsOwners(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o755); err != nil { // as a kubelet makes it
		t.Fatal(err)
	}
	lock, err := AcquireLock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, files[0].Name()): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %s, %v, want %s", path, info.Mode().Perm(), err, want)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := AcquireLock(t.Context(), link); err == nil || !strings.Contains(err.Error(), "must be a directory owned by user") {
		t.Errorf("through a link: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	others := filepath.Join(t.TempDir(), "others")
	if err := errors.Join(os.Mkdir(others, 0o700), os.Chown(others, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := AcquireLock(t.Context(), others); err == nil || !strings.Contains(err.Error(), "must be a directory owned by user 0") {
		t.Errorf("in a directory of somebody else: %v", err)
	}
}

// A note counts only in its own network namespace: the kernel uses the inode of an ended one again. A
// note that could not be written, or was not completed, counts as empty.
func TestNoteOfAnotherNamespace(t *testing.T) {
	lock, err := AcquireLock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	check := func(l *Lock, text string, ok bool) {
		t.Helper()
		if gotText, gotOK := l.Note(); gotText != text || gotOK != ok {
			t.Errorf("note %q, %t, want %q, %t", gotText, gotOK, text, ok)
		}
	}
	check(lock, "", false)
	if err := lock.SetNote("one"); err != nil {
		t.Fatal(err)
	}
	check(lock, "one", true)
	check(&Lock{lock.file, lock.owns + "1"}, "", false)
	if err := os.Truncate(lock.noteFile(), 0); err != nil {
		t.Fatal(err)
	}
	check(lock, "", true)
}

// The lock's file goes with the lock, and however many come and go, one at a time has it.
func TestLockLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	killed, held := filepath.Join(dir, "proxyc-1.lock"), filepath.Join(dir, "proxyc-2.lock") // of other network namespaces
	for _, path := range []string{killed, held} {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if path == held {
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}
	}
	var holders, most atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				lock, err := AcquireLock(t.Context(), dir)
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n > most.Load() {
					most.Store(n)
				}
				if owner, _ := LockOwner(dir); !strings.HasPrefix(owner, fmt.Sprintf("process %d (", os.Getpid())) {
					t.Errorf("owner: %q", owner)
				}
				holders.Add(-1)
				if err := lock.Release(); err != nil {
					t.Error(err)
				}
				if _, killed := LockOwner(dir); killed != "" {
					t.Errorf("killed: %q", killed)
				}
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d held the lock at once", most.Load())
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || files[0].Name() != "proxyc-2.lock" {
		t.Errorf("left: %v, %v", files, err)
	}
}

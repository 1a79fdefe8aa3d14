package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/windows"
)

// Lock is held by the one process that may change a node's rules.
type Lock struct{ file *os.File }

// AcquireLock takes the node's lock, a file in dir, and writes the owner beside
// it. While another process holds it, it waits until ctx ends, then names that
// process. The lock goes with the process, however it ends.
func AcquireLock(ctx context.Context, dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	path := filepath.Join(dir, "proxyc.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	ownerFile := filepath.Join(dir, "proxyc.owner") // what is locked cannot be read
	if err := waitForLock(ctx, f); err != nil {
		f.Close()
		owner, _ := os.ReadFile(ownerFile)
		if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return nil, fmt.Errorf("lock %s: held by %s", path, strings.TrimSpace(string(owner)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	owner := fmt.Sprintf("process %d (%s)\n", os.Getpid(), strings.Join(os.Args, " "))
	if err := os.WriteFile(ownerFile, []byte(owner), 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f}, nil
}

// waitForLock polls, since a wait for a lock cannot be interrupted by a context.
func waitForLock(ctx context.Context, f *os.File) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
		if !errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// Release gives the lock back.
func (l *Lock) Release() error {
	return errors.Join(windows.UnlockFileEx(windows.Handle(l.file.Fd()), 0, 1, 0, &windows.Overlapped{}), l.file.Close())
}

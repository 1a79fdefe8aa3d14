package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

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
	try := func() error {
		return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
	}
	if err := WaitForLock(ctx, try, windows.ERROR_LOCK_VIOLATION); err != nil {
		err = lockError(path, ownerFile, err, windows.ERROR_LOCK_VIOLATION)
		f.Close()
		return nil, err
	}
	if err := os.WriteFile(ownerFile, []byte(lockOwner()), 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{file: f}, nil
}

// Release gives the lock back.
func (l *Lock) Release() error {
	return errors.Join(windows.UnlockFileEx(windows.Handle(l.file.Fd()), 0, 1, 0, &windows.Overlapped{}), l.file.Close())
}

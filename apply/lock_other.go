//go:build !unix && !windows

package apply

import (
	"context"
	"errors"
)

// AcquireLock fails: only Unix has the lock.
func AcquireLock(context.Context, string) (*Lock, error) {
	return nil, errors.New("lock: not on this system")
}

// CheckLock looks at nothing.
func CheckLock(string) error { return nil }

// LockOwner returns nothing: only Unix has the lock.
func LockOwner(string) string { return "" }

// Release gives the lock back.
func (*Lock) Release() error { return nil }

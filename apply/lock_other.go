//go:build !linux && !windows

package apply

import (
	"context"
	"errors"
)

// AcquireLock fails: only Linux and Windows have the lock.
func AcquireLock(context.Context, string) (*Lock, error) {
	return nil, errors.New("lock: not on this system")
}

// InheritLock returns nil: only Linux has the lock.
func InheritLock(string, uintptr) *Lock { return nil }

// LastNote returns nothing: notes are only read by their owners.
func LastNote(string) (string, bool) { return "", false }

// CheckLock looks at nothing.
func CheckLock(string) error { return nil }

// LockOwner returns nothing: only Linux and Windows have the lock.
func LockOwner(string) (owner, killed string) { return "", "" }

// Release gives the lock back.
func (*Lock) Release() error { return nil }

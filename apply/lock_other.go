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

// Release gives the lock back.
func (*Lock) Release() error { return nil }

//go:build !unix && !windows

package apply

import (
	"context"
	"errors"
)

// Lock is held by the one process that may change a node's rules.
type Lock struct{}

// AcquireLock fails: only Unix has the lock.
func AcquireLock(context.Context, string) (*Lock, error) {
	return nil, errors.New("lock: not on this system")
}

// Release gives the lock back.
func (*Lock) Release() error { return nil }

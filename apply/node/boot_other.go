//go:build !linux && !windows

package node

import (
	"errors"
	"time"
)

// Booted is not supported on this system.
func Booted() (time.Time, error) { return time.Time{}, errors.ErrUnsupported }

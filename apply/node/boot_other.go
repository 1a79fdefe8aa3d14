//go:build !linux && !windows

package node

import (
	"errors"
	"time"
)

// BootTime is not supported on this system.
func BootTime() (time.Time, error) { return time.Time{}, errors.ErrUnsupported }

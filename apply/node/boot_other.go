//go:build !linux && !windows

package node

import (
	"errors"
	"time"
)

// Booted returns an error: nobody asks on other systems.
func Booted() (time.Time, error) { return time.Time{}, errors.ErrUnsupported }

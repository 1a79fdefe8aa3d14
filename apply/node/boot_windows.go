package node

import (
	"time"

	"golang.org/x/sys/windows"
)

// Booted returns when the machine started, by the current wall clock.
func Booted() (time.Time, error) { return time.Now().Add(-windows.DurationSinceBoot()), nil }

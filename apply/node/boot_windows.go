package node

import (
	"time"

	"golang.org/x/sys/windows"
)

// BootTime returns when the machine started, by the current wall clock.
func BootTime() (time.Time, error) { return time.Now().Add(-windows.DurationSinceBoot()), nil }

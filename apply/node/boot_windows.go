package node

import (
	"time"

	"golang.org/x/sys/windows"
)

// Booted returns when the machine was started, by the clock as it is now.
func Booted() (time.Time, error) { return time.Now().Add(-windows.DurationSinceBoot()), nil }

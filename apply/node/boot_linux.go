package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootTime returns when the machine started, by the current wall clock.
func BootTime() (time.Time, error) {
	var up unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up)
	return time.Now().Add(-time.Duration(up.Nano())), err
}

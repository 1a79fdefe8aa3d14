package node

import (
	"cmp"
	"fmt"
	"os"
	"time"
)

// BootTime returns when the machine started, by the current wall clock.
func BootTime() (time.Time, error) {
	var up float64 // seconds
	text, err := os.ReadFile("/proc/uptime")
	if _, err2 := fmt.Sscan(string(text), &up); cmp.Or(err, err2) != nil {
		return time.Time{}, fmt.Errorf("/proc/uptime: %w", cmp.Or(err, err2))
	}
	return time.Now().Add(-time.Duration(up * float64(time.Second))), nil
}

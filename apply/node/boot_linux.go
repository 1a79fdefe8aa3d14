package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// BootTime returns when the machine started, by the current wall clock.
func BootTime() (time.Time, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	up, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("/proc/uptime: %w", err)
	}
	return time.Now().Add(-time.Duration(up * float64(time.Second))), nil
}

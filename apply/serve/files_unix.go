//go:build unix

package serve

import (
	"math"
	"syscall"
)

// openFiles returns the process's limit of open files, including sockets.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(uint64(limit.Cur), math.MaxInt))
}

// Package sample reads what processes use, and summarizes samples.
package sample

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the processor time that all threads of a process have used, including ended ones.
func CPU(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED: the scheduler's own count
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &used); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// Resident are the fields of a process's memory that Memory reads.
const (
	Resident = "VmRSS:"
	Peak     = "VmHWM:" // the most that was resident
)

// Memory returns a field of a process's memory, in bytes.
func Memory(pid int, name string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kb, err := field(status, name)
	return kb * 1024, err
}

// Quantile returns the q quantile of sorted values; zero if there are none.
func Quantile[T ~int64 | ~float64](sorted []T, q float64) (zero T) {
	if len(sorted) == 0 {
		return zero
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Machine is the machine of a measurement.
type Machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"model"` // of the processor
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// ThisMachine describes the machine that this process runs on.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Model: runtime.GOARCH, Kernel: "?", Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	data, _ := os.ReadFile("/proc/cpuinfo") // without it there is no name
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "model name\t: "); ok {
			m.Model = strings.TrimSpace(name)
		}
	}
	return m
}

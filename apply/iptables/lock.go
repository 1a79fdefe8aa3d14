package iptables

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"
)

// noLockFile is a file that no program locks. Tools of ours get it while we hold their lock.
const noLockFile = "/dev/null"

// lockFile is the file that the legacy tools lock.
func lockFile() string { return cmp.Or(os.Getenv("XTABLES_LOCKFILE"), "/run/xtables.lock") }

// lockedBy says who holds the lock, as far as the kernel tells.
func lockedBy(path string, waited time.Duration) string {
	s := fmt.Sprintf("%s is locked by another program, and was not released in %s", path, waited)
	if holder := holderOf(path); holder != "" {
		s += ": held by " + holder
	}
	return s
}

// processName is what a process calls itself, with its number.
func processName(pid string) string {
	command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	words := strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
	if words == "" {
		return "process " + pid
	}
	return "process " + pid + " (" + words + ")"
}

package iptables

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"
)

// noLockFile is a file that no program locks. Our tools lock it instead while we hold their lock.
const noLockFile = "/dev/null"

// lockFile returns the lock file of the legacy tools.
func lockFile() string { return cmp.Or(os.Getenv("XTABLES_LOCKFILE"), "/run/xtables.lock") }

// lockedBy returns the message that the lock is held, with its holder if known.
func lockedBy(path string, waited time.Duration) string {
	s := fmt.Sprintf("%s is locked by another program, and was not released in %s", path, waited)
	if holder := holderOf(path); holder != "" {
		s += ": held by " + holder
	}
	return s
}

// processName returns the command line and ID of a process.
func processName(pid string) string {
	command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	words := strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
	if words == "" {
		return "process " + pid
	}
	return "process " + pid + " (" + words + ")"
}

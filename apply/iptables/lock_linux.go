package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
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

// holderOf returns the process that holds a lock on the file, from /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF
func holderOf(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line)
		if len(fields) == 8 && fields[5] == file && fields[4] != "0" && fields[4] != "-1" {
			return processName(fields[4])
		}
	}
	return ""
}

// lockTools acquires the lock of the legacy tools. A tool that is started meanwhile inherits it,
// and keeps it even if this process is killed.
func lockTools(ctx context.Context, wait time.Duration) (unlock func(), err error) {
	path := lockFile()
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	first, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	try := func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }
	if err := apply.WaitForLock(first, try, unix.EWOULDBLOCK); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, cmp.Or(ctx.Err(), errors.New(lockedBy(path, wait)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) // tools inherit the lock; this cannot fail
	return func() {
		unix.Flock(fd, unix.LOCK_UN) // also for tools that inherited it
		unix.Close(fd)
	}, nil
}

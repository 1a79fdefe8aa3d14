package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// enter starts this program anew in a network namespace, by a name as ip netns gives it.
func enter(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	namespace, err := os.Open(filepath.Join("/run/netns", filepath.Base(name)))
	if err != nil {
		return fmt.Errorf("--netns: must name a network namespace, as ip netns add makes one: %w", err)
	}
	runtime.LockOSThread() // the namespace is that of this thread, and then the program's
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("--netns: %w", err)
	}
	return unix.Exec(self, append(os.Args[:len(os.Args):len(os.Args)], "--entered"), os.Environ())
}

package replay

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Enter executes this program again in a network namespace. name is a name of ip netns.
func Enter(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	const must = "--netns: must name a network namespace, as created by ip netns add"
	if name != filepath.Base(name) {
		return fmt.Errorf("%s, got path %s", must, name)
	}
	namespace, err := os.Open(filepath.Join("/run/netns", name))
	if err != nil {
		return fmt.Errorf("%s: %w", must, err)
	}
	runtime.LockOSThread() // setns changes only this thread; exec keeps its namespace
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("--netns: %w", err)
	}
	verb := slices.Index(os.Args, "replay") // arguments after -- are not flags
	return unix.Exec(self, slices.Insert(slices.Clone(os.Args), verb+1, "--entered"), os.Environ())
}

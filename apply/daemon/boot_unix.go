//go:build unix

package daemon

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// trusted returns why another user may have written a file; nil if only root or the daemon's user
// can.
func trusted(file fs.FileInfo) error {
	if stat, ok := file.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("must be owned by root or the daemon's user, is owned by user %d", stat.Uid)
	}
	if mode := file.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("must be writable only by its owner, has mode %04o", mode)
	}
	return nil
}

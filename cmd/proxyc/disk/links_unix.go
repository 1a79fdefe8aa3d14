//go:build unix

package disk

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the number of symbolic links that Linux follows in one path.
const maxLinks = 40

// checkLinks returns an error if a path contains a symbolic link that Linux does not follow with
// fs.protected_symlinks: one that another user created in a directory such as /tmp, where every user
// may create files. The setting can be off, and does not cover renames to the target of a link.
// Opening the path reports all other errors.
func checkLinks(path string) error {
	rest, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	dir := "/"
	for links := 0; rest != "" && links < maxLinks; {
		part, next, _ := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		at := filepath.Join(dir, part)
		info, err := os.Lstat(at)
		if err != nil {
			return nil
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			dir, rest = at, next
			continue
		}
		if isForeign(dir, info) {
			return fmt.Errorf("%s: is not followed: another user created this symbolic link, in a directory where every user may create files; choose another path", at)
		}
		to, err := os.Readlink(at)
		if err != nil {
			return nil
		}
		if filepath.IsAbs(to) {
			dir = "/"
		}
		rest = to + "/" + next
		links++
	}
	return nil
}

// isForeign reports whether another user than this one and the directory's owner created the link.
func isForeign(dir string, link fs.FileInfo) bool {
	in, err := os.Lstat(dir)
	if err != nil || in.Mode()&fs.ModeSticky == 0 || in.Mode()&0o002 == 0 {
		return false
	}
	creator := link.Sys().(*syscall.Stat_t).Uid
	return int(creator) != os.Geteuid() && creator != in.Sys().(*syscall.Stat_t).Uid
}

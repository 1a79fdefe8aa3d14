package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// AcquireLock acquires the lock of the calling thread's network namespace, in dir, and writes the
// owner into it. While another process holds the lock, AcquireLock waits until ctx ends. The error
// names that process. The kernel releases the lock when the process and all programs that it started
// have ended, since these may still change the rules.
//
// AcquireLock creates dir, accessible only to its owner. Every process that can open the file could
// hold the lock, and prevent proxyc from starting.
func AcquireLock(ctx context.Context, dir string) (*Lock, error) {
	path, err := lockPath(dir)
	if err != nil {
		return nil, err
	}
	if err := ownDir(dir); err != nil {
		return nil, notWritable(dir, err)
	}
	var f *os.File
	for { // until the locked file is still at the path: its previous owner removes it
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err != nil {
			return nil, notWritable(dir, err)
		}
		try := func() error {
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) || isAt(f, path) {
				return err
			}
			return errGone // its owner removed it, and another file may have replaced it
		}
		err = WaitForLock(ctx, try, unix.EWOULDBLOCK)
		if err == nil && isAt(f, path) {
			break
		}
		if err != nil && !errors.Is(err, errGone) {
			err = lockError(path, path, err, unix.EWOULDBLOCK)
			f.Close()
			return nil, err
		}
		f.Close()
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFD, 0) // started programs inherit it
	if err := errors.Join(err, f.Truncate(0), writeAt(f, lockOwner())); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	removeUnused(dir, path)
	return &Lock{f, namespaceCookie()}, nil
}

// InheritLock returns the lock in dir that this process acquired before it executed itself again; nil if
// the descriptor is not that of the lock.
func InheritLock(dir string, descriptor uintptr) *Lock {
	path, err := lockPath(dir)
	if f := os.NewFile(descriptor, path); err == nil && f != nil && isAt(f, path) {
		return &Lock{f, namespaceCookie()}
	}
	return nil
}

// namespaceCookie identifies the calling thread's network namespace until the next boot. The number of
// its inode, and with it the name of the note, is used again. It is "" before Linux 5.14.
func namespaceCookie() string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(cookie, 10)
}

// notWritable adds the fix, if known, to the error of a lock that cannot be written in dir.
func notWritable(dir string, err error) error {
	fix := ""
	if errors.Is(err, unix.EROFS) {
		fix = fmt.Sprintf(": mount %s writable; the lock shows who writes the node's rules, and only --dry-run and --check need none", dir)
	}
	return fmt.Errorf("lock: %w%s", err, fix)
}

// removeUnused removes the files of other locks in dir that no process holds. A process that is killed
// leaves its file, and its network namespace may never have another one.
func removeUnused(dir, used string) {
	all, _ := filepath.Glob(filepath.Join(dir, "proxyc-*.lock"))
	for _, path := range all {
		if path == used {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && isAt(f, path) {
			os.Remove(path)
		}
		f.Close()
	}
}

// CheckLock returns why a lock could not be written in dir; nil if it could. It writes another file
// there.
func CheckLock(dir string) error {
	if err := ownDir(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "proxyc-check-*")
	if err != nil {
		return err
	}
	return errors.Join(writeAt(f, lockOwner()), f.Close(), os.Remove(f.Name()))
}

// errGone means that the lock file was removed and has to be opened again.
var errGone = errors.New("the lock's file is gone")

// LockOwner returns the owner of the lock of the calling thread's network namespace in dir: "process
// 4711 (proxyc watch)"; "" if there is none, or it cannot be read. killed is the last owner, if it was killed.
func LockOwner(dir string) (owner, killed string) {
	path, _ := lockPath(dir) // "" cannot be opened
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", ""
	}
	defer f.Close()
	held := errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	text, _ := io.ReadAll(io.LimitReader(f, 4096))
	if is := strings.TrimSpace(string(text)); held {
		owner = is
	} else if isAt(f, path) { // else its owner removed it
		killed = is
	}
	return owner, killed
}

// LastNote returns the note of the calling thread's network namespace in dir, as Lock.Note does.
func LastNote(dir string) (text string, ok bool) {
	path, err := lockPath(dir)
	if err != nil {
		return "", false
	}
	return note(noteOf(path), namespaceCookie())
}

// lockPath is the file of the calling thread's network namespace under dir.
func lockPath(dir string) (string, error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return "", fmt.Errorf("lock: network namespace: %w", err)
	}
	return filepath.Join(dir, fmt.Sprintf("proxyc-%d.lock", ns.Ino)), nil
}

// ownDir creates a directory that only its owner can access.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: must be a directory owned by user %d, and accessible only to it", dir, os.Geteuid())
	}
	if st.Mode&0o077 == 0 {
		return nil
	}
	return os.Chmod(dir, 0o700) // as a kubelet makes it
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// Release releases the lock and removes its file, since each network namespace has one. Processes that
// opened it meanwhile detect that.
func (l *Lock) Release() error {
	var err error
	if l.Held() {
		err = os.Remove(l.file.Name())
	}
	return errors.Join(err, unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

//go:build unix

package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// AcquireLock takes the lock of the network namespace that the calling thread
// is in, under dir, and writes the owner into it. While another process holds
// it, it waits until ctx ends, then names that process. The lock goes with the
// process, however it ends, and with the last of the programs that it started:
// what these still do to the rules, the next owner has to see.
//
// dir is made, and is its owner's alone: who can open the file can hold the
// lock, and keep proxyc from starting.
func AcquireLock(ctx context.Context, dir string) (*Lock, error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, fmt.Errorf("lock: network namespace: %w", err)
	}
	if err := ownDir(dir); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("proxyc-%d.lock", ns.Ino))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	try := func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	if err := waitForLock(ctx, try, unix.EWOULDBLOCK); err != nil {
		err = lockError(path, path, err, unix.EWOULDBLOCK)
		f.Close()
		return nil, err
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFD, 0) // started programs inherit it
	if err := errors.Join(err, f.Truncate(0), writeAt(f, lockOwner())); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f}, nil
}

// ownDir makes a directory one that nobody else can look into.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: must be a directory of user %d, and of nobody else", dir, os.Geteuid())
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

// Release gives the lock back.
func (l *Lock) Release() error {
	return errors.Join(unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

package watch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inotify reports changes in directories and of files. It uses inotify directly. Unlike portable
// libraries, inotify reports when a file that was open for writing is closed.
type inotify struct {
	out   chan fileEvent // closed when the kernel reports no more events
	file  *os.File
	ended chan struct{}
	stop  func()
	done  chan struct{}

	mu    sync.Mutex
	paths map[int32]string // by watch descriptor
}

// Masks of inotify events: entries that are added or removed, for every directory; and writes, for
// files, and directories with followed files.
const (
	entryEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	writeEvents = unix.IN_MODIFY | unix.IN_CLOSE_WRITE
)

// newNotifier returns a notifier of the kernel.
func newNotifier() (notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	n := &inotify{out: make(chan fileEvent), file: os.NewFile(uintptr(fd), "inotify"),
		ended: make(chan struct{}), done: make(chan struct{}), paths: map[int32]string{}}
	n.stop = sync.OnceFunc(func() {
		close(n.ended)
		n.file.Close()
		<-n.done
	})
	go n.read()
	return n, nil
}

func (n *inotify) events() <-chan fileEvent { return n.out }

// Close ends the watch.
func (n *inotify) Close() { n.stop() }

// watch watches exactly these directories and files. Missing ones are ignored.
func (n *inotify) watch(paths map[string]interest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	conn, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	now := make(map[int32]string, len(paths))
	var failed error
	err = conn.Control(func(fd uintptr) {
		for path, of := range paths {
			var mask uint32 = entryEvents
			switch {
			case of.file && !isMount(path): // its directory reports everything
				continue
			case of.file:
				mask = writeEvents
			case of.files:
				mask |= writeEvents
			}
			wd, err := unix.InotifyAddWatch(int(fd), path, mask)
			switch {
			case err == nil:
				now[int32(wd)] = path
			case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES):
				failed = errors.Join(failed, &os.PathError{Op: "inotify_add_watch", Path: path, Err: err})
			}
		}
		for wd := range n.paths {
			if _, wanted := now[wd]; !wanted {
				unix.InotifyRmWatch(int(fd), uint32(wd)) // fails if the watch was already removed
			}
		}
	})
	n.paths = now
	return errors.Join(err, failed)
}

// isMount reports whether a file is a mount of its own. Kernels before 5.8 do not tell: there are none
// then.
func isMount(path string) bool {
	var file, dir unix.Statx_t
	err := errors.Join(
		unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &file),
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), 0, unix.STATX_MNT_ID, &dir),
	)
	return err == nil && file.Mnt_id != dir.Mnt_id
}

// path returns the path of a watch, or false if it is no longer watched.
func (n *inotify) path(wd int32) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	path, ok := n.paths[wd]
	return path, ok
}

// read reports the kernel's events until the file is closed.
func (n *inotify) read() {
	defer close(n.done)
	defer close(n.out)
	buffer := make([]byte, 64<<10)
	for {
		got, err := n.file.Read(buffer)
		if err != nil {
			return
		}
		for rest := buffer[:got]; len(rest) >= unix.SizeofInotifyEvent; {
			raw := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			end := unix.SizeofInotifyEvent + int(raw.Len)
			name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00"))
			rest = rest[end:]
			h, ok := n.translate(raw.Wd, raw.Mask, name)
			if !ok {
				continue
			}
			select {
			case n.out <- h:
			case <-n.ended:
				return
			}
		}
	}
}

// translate translates an event of the kernel.
func (n *inotify) translate(wd int32, mask uint32, name string) (fileEvent, bool) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return fileEvent{}, true
	}
	path, ok := n.path(wd)
	if !ok || mask&unix.IN_IGNORED != 0 {
		return fileEvent{}, false
	}
	h := fileEvent{path: filepath.Join(path, name), dir: mask&unix.IN_ISDIR != 0} // no name if the event is about the path itself
	switch {
	case mask&unix.IN_MODIFY != 0:
		h.kind = written
	case mask&unix.IN_CLOSE_WRITE != 0:
		h.kind = closed
	}
	return h, true
}

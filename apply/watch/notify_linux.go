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

// notifier reports what happens in directories. It is inotify itself, which
// reports, other than what is there on every system, when a file that was
// written to is closed.
type notifier struct {
	told  chan happening // closed when the kernel tells no more
	file  *os.File
	ended chan struct{}
	stop  func()
	done  chan struct{}

	mu   sync.Mutex
	dirs map[int32]string // by watch descriptor
}

// What is asked for: of each directory, what comes to it and goes; of one with
// files to follow, who writes to them, too.
const (
	comings = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	writing = unix.IN_MODIFY | unix.IN_CLOSE_WRITE
)

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	n := &notifier{told: make(chan happening), file: os.NewFile(uintptr(fd), "inotify"),
		ended: make(chan struct{}), done: make(chan struct{}), dirs: map[int32]string{}}
	n.stop = sync.OnceFunc(func() {
		close(n.ended)
		n.file.Close()
		<-n.done
	})
	go n.read()
	return n, nil
}

func (n *notifier) events() <-chan happening { return n.told }

// Close ends the watch.
func (n *notifier) Close() { n.stop() }

// watch watches exactly these directories. One that is gone is none.
func (n *notifier) watch(dirs map[string]interest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	conn, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	now := make(map[int32]string, len(dirs))
	var failed error
	err = conn.Control(func(fd uintptr) {
		for dir, of := range dirs {
			var mask uint32 = comings
			if of.files {
				mask |= writing
			}
			wd, err := unix.InotifyAddWatch(int(fd), dir, mask)
			switch {
			case err == nil:
				now[int32(wd)] = dir
			case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES):
				failed = errors.Join(failed, &os.PathError{Op: "inotify_add_watch", Path: dir, Err: err})
			}
		}
		for wd := range n.dirs {
			if _, wanted := now[wd]; !wanted {
				unix.InotifyRmWatch(int(fd), uint32(wd)) // one that went by itself is an error
			}
		}
	})
	n.dirs = now
	return errors.Join(err, failed)
}

// dir returns the directory of a watch; false: it is not watched any more.
func (n *notifier) dir(wd int32) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	dir, ok := n.dirs[wd]
	return dir, ok
}

// read hands on what the kernel reports until the file is closed.
func (n *notifier) read() {
	defer close(n.done)
	defer close(n.told)
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
			h, ok := n.happened(raw.Wd, raw.Mask, name)
			if !ok {
				continue
			}
			select {
			case n.told <- h:
			case <-n.ended:
				return
			}
		}
	}
}

// happened says what an event of the kernel means.
func (n *notifier) happened(wd int32, mask uint32, name string) (happening, bool) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return happening{}, true
	}
	dir, ok := n.dir(wd)
	if !ok || mask&unix.IN_IGNORED != 0 {
		return happening{}, false
	}
	h := happening{path: filepath.Join(dir, name), dir: mask&unix.IN_ISDIR != 0} // of the directory itself, without a name: it is one in its parent
	switch {
	case mask&unix.IN_MODIFY != 0:
		h.what = written
	case mask&unix.IN_CLOSE_WRITE != 0:
		h.what = closed
	}
	return h, true
}

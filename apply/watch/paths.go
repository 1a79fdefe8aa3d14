package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/files"
)

const (
	// settleTime is how long files must be unchanged before they are read. Editors and tools write in
	// several steps.
	settleTime = 50 * time.Millisecond
	// openTimeout replaces settle while another process has a file open for writing.
	openTimeout = 5 * time.Second
	// maxDelay bounds the wait, so that a file that always changes does not block the others.
	maxDelay = 30 * time.Second
	// LongestRetry is the longest wait before a file that could not be read is read again. The cause may
	// be temporary, such as a limit of open files, and removing it changes no file.
	LongestRetry = 30 * time.Second
)

// Paths calls changed in this goroutine: once at the start, after each change of a path or of an
// entry in a directory, when again requests it, and after the wait that changed returns, unless that
// is 0. It returns when ctx ends, or with an error if a path cannot be made absolute.
//
// If the kernel cannot report changes, or no longer, Paths calls polled with the reason and polls
// every 5 s.
func Paths(ctx context.Context, paths []string, again <-chan struct{}, polled func(why error), changed func() (retry time.Duration)) error {
	return followPaths(ctx, paths, newNotifier, again, polled, changed)
}

// followPaths is Paths with the notifier of open.
func followPaths(ctx context.Context, paths []string, open func() (notifier, error), again <-chan struct{}, polled func(why error), changed func() (retry time.Duration)) error {
	for {
		w, err := watchPaths(paths, open)
		if err == nil && w.pollReason != nil {
			polled(w.pollReason)
		}
		retry := changed() // after setting the watches, so that no change is missed
		if err != nil {
			return err
		}
		if err = w.run(ctx, time.After, again, retry, changed); err == nil {
			return nil
		}
		open = func() (notifier, error) { return nil, err }
	}
}

// fileEvent is a change of a name in a directory.
type fileEvent struct {
	path string // empty if events were lost: anything may have changed
	kind changeKind
	dir  bool // the name is a directory
}

// changeKind is the type of a change.
type changeKind int

const (
	moved   changeKind = iota // added, removed or replaced
	written                   // written, and still open
	closed                    // closed after it was open for writing
)

// pathWatch is a set of watched paths, with every directory that they lead through. A file, a
// directory above it, or a link on the way may be replaced, like the link ..data of a ConfigMap
// volume.
type pathWatch struct {
	notifier
	pollReason error    // why it polls; nil if the kernel reports changes
	paths      []string // absolute
	interests  map[string]interest
}

// interest describes the relevant names in a directory.
type interest struct {
	names   map[string]bool
	files   bool // some names are files, not only links and directories on the way
	objects bool // all names of object files and directories are relevant, too
	file    bool // it is a file; if it is a mount, its directory does not report writes to its source
}

// notifier reports changes in directories and of files.
type notifier interface {
	events() <-chan fileEvent // closed after the last event
	watch(paths map[string]interest) error
	Close()
}

// watchPaths watches with the notifier of first, or polls if first fails.
func watchPaths(paths []string, first func() (notifier, error)) (*pathWatch, error) {
	n, err := first()
	if err == nil {
		var w *pathWatch
		if w, err = newPathWatch(paths, n, nil); err == nil {
			return w, nil
		}
	}
	return newPathWatch(paths, newPoller(pollEvery), err)
}

func newPathWatch(paths []string, n notifier, pollReason error) (*pathWatch, error) {
	w := &pathWatch{notifier: n, pollReason: pollReason, paths: make([]string, len(paths))}
	var err error
	for i := 0; err == nil && i < len(paths); i++ {
		w.paths[i], err = filepath.Abs(paths[i])
	}
	if err == nil {
		err = w.arm()
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("watching files: %w", err)
	}
	return w, nil
}

// arm watches all directories that the paths lead through now.
func (w *pathWatch) arm() error {
	const most = 10 // attempts, since a tree may change continuously
	for n := range most {
		before := w.interests
		w.interests = map[string]interest{}
		for _, p := range w.paths {
			w.addPath(p, true)
		}
		// No event reports a directory that was added before its parent was watched.
		if n > 0 && maps.EqualFunc(before, w.interests, interest.sameWatch) {
			break
		}
		if err := w.notifier.watch(w.interests); err != nil {
			return err
		}
	}
	return nil
}

// sameWatch reports whether a notifier watches both in the same way.
func (i interest) sameWatch(j interest) bool { return i.file == j.file && i.files == j.files }

// addPath records the directories that an absolute path leads through, and its file. If the path is a
// directory and end is set, it also records the files below. Missing entries are watched for.
func (w *pathWatch) addPath(path string, end bool) {
	const maxLinks = 40 // the kernel's limit (MAXSYMLINKS)
	rest := parts(path)
	at := root(path)
	for links := 0; len(rest) > 0 && links < maxLinks; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." { // from a link; at contains no links, so its parent is the kernel's, too
			at = filepath.Dir(at)
			continue
		}
		w.addName(at, name, len(rest) == 0)
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil {
			return
		}
		if info.Mode().Type() != os.ModeSymlink {
			at = next
			continue
		}
		to, err := os.Readlink(next)
		if err != nil {
			return
		}
		if links++; filepath.IsAbs(to) {
			at = root(to)
		}
		rest = append(parts(to), rest...)
	}
	switch info, err := os.Lstat(at); {
	case err != nil:
	case !info.IsDir():
		w.interests[at] = interest{file: true}
	case end:
		w.addTree(at)
	}
}

// addTree records a directory with followed files, and those below it. Unreadable directories are
// reported by the reader.
func (w *pathWatch) addTree(dir string) {
	i := w.interests[dir]
	i.files, i.objects = true, true
	w.interests[dir] = i
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && !files.IsHidden(e.Name()):
			w.addTree(name)
		case !e.IsDir() && files.IsObjects(e.Name()):
			w.addPath(name, false)
		}
	}
}

// addName records a relevant name in a directory; file if it may be a file.
func (w *pathWatch) addName(dir, name string, file bool) {
	i := w.interests[dir]
	i.files = i.files || file
	if i.names == nil {
		i.names = map[string]bool{}
	}
	i.names[name] = true
	w.interests[dir] = i
}

// root returns the root directory of an absolute path. On Windows each volume has one.
func root(path string) string { return filepath.VolumeName(path) + string(filepath.Separator) }

// parts returns the names in a path below its root, without empty ones and ".".
func parts(path string) []string {
	var out []string
	for name := range strings.SplitSeq(path[len(filepath.VolumeName(path)):], string(filepath.Separator)) {
		if name != "" && name != "." {
			out = append(out, name)
		}
	}
	return out
}

// relevant reports whether a change is relevant.
func (w *pathWatch) relevant(h fileEvent) bool {
	if h.path == "" {
		return true
	}
	i, name := w.interests[filepath.Dir(h.path)], filepath.Base(h.path)
	return i.names[name] || i.objects && (files.IsObjects(name) || h.dir && !files.IsHidden(name))
}

// run calls changed after each change until ctx ends, and closes the watch. It waits until files
// that are being written are closed or unchanged for patience. It also calls changed when again
// requests it, and after the wait that changed returned; retry is the first one.
func (w *pathWatch) run(ctx context.Context, after func(time.Duration) <-chan time.Time, again <-chan struct{}, retry time.Duration, changed func() (retry time.Duration)) error {
	defer w.Close()
	open := map[string]bool{} // written, and not closed
	var quiet, latest, due <-chan time.Time
	if retry > 0 {
		due = after(retry)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case h, ok := <-w.events():
			switch {
			case !ok:
				return errors.New("watching files: the watch ended")
			case !w.relevant(h):
				continue
			case h.kind == written:
				open[h.path] = true
			default:
				delete(open, h.path)
			}
			wait := settleTime
			if len(open) > 0 {
				wait = openTimeout
			}
			if quiet = after(wait); latest == nil {
				latest = after(maxDelay)
			}
			continue
		case <-quiet:
		case <-latest:
		case <-again:
		case <-due:
		}
		quiet, latest, due = nil, nil, nil
		clear(open)
		if err := w.arm(); err != nil {
			return fmt.Errorf("watching files: %w", err)
		}
		if retry := changed(); retry > 0 {
			due = after(retry)
		}
	}
}

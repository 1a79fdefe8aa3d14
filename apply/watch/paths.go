package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/files"
)

const (
	// settle is how long files have to be quiet before they are read: editors
	// and tools write in several steps.
	settle = 50 * time.Millisecond
	// patience is how long a file that somebody has open, and wrote to, has to
	// be quiet before it is read all the same.
	patience = 5 * time.Second
	// longest is how long something may go on changing before all is read as
	// it is: one that never rests does not hold up the others.
	longest = 30 * time.Second
)

// Paths calls changed, in this goroutine, once at first and then each time
// something changed at one of the paths, or in one that is a directory, or
// again asks for it. It ends with ctx.
//
// polled is told why, where the kernel does not tell of changes and they are
// looked for every 5 s instead.
func Paths(ctx context.Context, paths []string, again <-chan struct{}, polled func(why error), changed func()) error {
	w, err := watchPaths(paths, newNotices)
	if err != nil {
		return err
	}
	if w.polls != nil {
		polled(w.polls)
	}
	changed() // after the watches are set: what changes from here on is seen
	return w.run(ctx, time.After, again, changed)
}

// happening is something that happened to a name in a directory.
type happening struct {
	path string // empty: anything may have happened, since events were lost
	what what
	dir  bool // to a directory
}

// what happened.
type what int

const (
	moved   what = iota // came, went, or became something else
	written             // by somebody who has it open
	closed              // by one who could write to it
)

// watched are paths that are watched, with every directory that they lead
// through: a file may be replaced, or a directory above it, or a link on the
// way, as the link ..data of a ConfigMap is.
type watched struct {
	notices
	polls   error    // why changes are looked for; nil: they are told
	paths   []string // absolute
	concern map[string]interest
}

// interest is what counts in a directory.
type interest struct {
	names   map[string]bool
	files   bool // some are those of files, and not only of what leads to them
	objects bool // all names that files with objects can have, too, and directories
}

// notices tell of what happens in directories.
type notices interface {
	events() <-chan happening // closed when there will be no more
	watch(dirs map[string]interest) error
	Close()
}

func newNotices() (notices, error) {
	n, err := newNotifier()
	if err != nil {
		return nil, err
	}
	return n, nil
}

// watchPaths watches as first does, or, where that is refused, by looking again and again.
func watchPaths(paths []string, first func() (notices, error)) (*watched, error) {
	n, err := first()
	if err != nil {
		return pollPaths(paths, pollEvery, err)
	}
	w, err := newWatched(paths, n)
	if err != nil {
		return pollPaths(paths, pollEvery, err)
	}
	return w, nil
}

func pollPaths(paths []string, every time.Duration, why error) (*watched, error) {
	w, err := newWatched(paths, newPoller(every))
	if err == nil {
		w.polls = why
	}
	return w, err
}

func newWatched(paths []string, n notices) (*watched, error) {
	w := &watched{notices: n}
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err == nil {
			w.paths = append(w.paths, abs)
			continue
		}
		n.Close()
		return nil, fmt.Errorf("watching %s: %w", p, err)
	}
	if err := w.arm(); err != nil {
		n.Close()
		return nil, fmt.Errorf("watching files: %w", err)
	}
	return w, nil
}

// arm watches all that the paths lead through as they are now.
func (w *watched) arm() error {
	const most = 10 // a tree that never rests is watched as it was seen last
	for n := range most {
		before := w.concern
		w.concern = map[string]interest{}
		for _, p := range w.paths {
			w.lead(p, true)
		}
		// A directory that came below another one before that was watched is told by nobody.
		if n > 0 && sameKeys(before, w.concern) {
			break
		}
		if err := w.notices.watch(w.concern); err != nil {
			return err
		}
	}
	return nil
}

func sameKeys(a, b map[string]interest) bool {
	for dir := range a {
		if _, ok := b[dir]; !ok {
			return false
		}
	}
	return len(a) == len(b)
}

// lead notes the directories that an absolute path leads through, and of a
// directory at its end the files in it. What is not there may come.
func (w *watched) lead(path string, end bool) {
	const maxLinks = 40 // as the kernel has it
	rest := parts(path)
	at := root(path)
	for links := 0; len(rest) > 0 && links < maxLinks; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." { // of a link: at has none, so that its parent is the kernel's
			at = filepath.Dir(at)
			continue
		}
		w.note(at, name, len(rest) == 0)
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
	if info, err := os.Lstat(at); !end || err != nil || !info.IsDir() {
		return
	}
	w.below(at)
}

// below notes a directory with files to follow, and those in it. What cannot be
// read is the reader's to tell.
func (w *watched) below(dir string) {
	i := w.concern[dir]
	i.files, i.objects = true, true
	w.concern[dir] = i
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && !files.IsHidden(e.Name()):
			w.below(name)
		case !e.IsDir() && files.IsObjects(e.Name()):
			w.lead(name, false)
		}
	}
}

// note notes that a name in a directory counts, and may be a file's.
func (w *watched) note(dir, name string, file bool) {
	i := w.concern[dir]
	i.files = i.files || file
	if i.names == nil {
		i.names = map[string]bool{}
	}
	i.names[name] = true
	w.concern[dir] = i
}

// root is the directory in which an absolute path begins: on Windows each volume has one.
func root(path string) string { return filepath.VolumeName(path) + string(filepath.Separator) }

// parts are the names in a path below its root, without those that lead nowhere.
func parts(path string) []string {
	var out []string
	for name := range strings.SplitSeq(path[len(filepath.VolumeName(path)):], string(filepath.Separator)) {
		if name != "" && name != "." {
			out = append(out, name)
		}
	}
	return out
}

// concerns reports whether what happened is a change of what is watched.
func (w *watched) concerns(h happening) bool {
	if h.path == "" {
		return true
	}
	i, name := w.concern[filepath.Dir(h.path)], filepath.Base(h.path)
	return i.names[name] || i.objects && (files.IsObjects(name) || h.dir && !files.IsHidden(name))
}

// run calls changed after each change until ctx ends, and closes the watch.
// What is being written is left until it is closed, or rests all the same; who
// asks for it again wants all as it is now.
func (w *watched) run(ctx context.Context, after func(time.Duration) <-chan time.Time, again <-chan struct{}, changed func()) error {
	defer w.Close()
	open := map[string]bool{} // written to, and not closed
	var quiet, latest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case h, ok := <-w.events():
			switch {
			case !ok:
				return errors.New("watching files: the watch ended")
			case !w.concerns(h):
				continue
			case h.what == written:
				open[h.path] = true
			default:
				delete(open, h.path)
			}
			wait := settle
			if len(open) > 0 {
				wait = patience
			}
			if quiet = after(wait); latest == nil {
				latest = after(longest)
			}
			continue
		case <-quiet:
		case <-latest:
		case <-again:
		}
		quiet, latest = nil, nil
		clear(open)
		if err := w.arm(); err != nil {
			return fmt.Errorf("watching files: %w", err)
		}
		changed()
	}
}

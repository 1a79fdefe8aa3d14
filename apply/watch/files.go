package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Files is the source for a node without an API server: a file, or a directory
// with .yaml, .yml and .json files, which is read again when it changes.
type Files struct {
	Path  string
	Store *Store
	Log   *slog.Logger
	// Report is told what there is to say about the files each time they are
	// read. Objects with errors are left out.
	Report func(diag.List)
}

// Read reads the files into the Store. A file that is no YAML or JSON at all
// may be half written: then the Store stays as it is, and the error says why.
func (f *Files) Read() error {
	names, err := objectFiles(f.Path)
	if err != nil {
		return err
	}
	snap := snapshot.New()
	var diags diag.List
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		diags.Add(snapshot.Decode(snap, name, data)...)
	}
	for _, d := range diags {
		if d.Severity == diag.Error && d.Object == "" {
			return errors.New(d.String())
		}
	}
	diags.Add(snap.Finish()...)
	f.Report(diags)
	f.Store.replace(func(s *snapshot.Snapshot) snapshot.Dirty { return s.Update(snap) })
	return nil
}

// Run reads the files, tells first what came of that, and follows them until
// ctx ends. What cannot be read later is told, and tried again when something
// changes.
func (f *Files) Run(ctx context.Context, first func(error)) error {
	w, err := watchPaths([]string{f.Path})
	first(f.Read()) // after the watch is set: what changes from here on is seen
	if err != nil {
		return err
	}
	return w.run(ctx, func() {
		if err := f.Read(); err != nil {
			f.Log.Error("the snapshot stays as it is", "err", err)
		}
	})
}

// objectFiles gives the files of a directory that can hold objects, in order
// of name; what is no directory stands for itself.
func objectFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && e.Name()[0] != '.' {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

// settle is how long files have to be quiet before they are read: editors and
// tools write in several steps.
const settle = 50 * time.Millisecond

// Paths calls changed, in this goroutine, once at first and then each time
// something changed at one of the paths, or in one that is a directory. It
// ends with ctx.
func Paths(ctx context.Context, paths []string, changed func()) error {
	w, err := watchPaths(paths)
	if err != nil {
		return err
	}
	changed() // after the watches are set: what changes from here on is seen
	return w.run(ctx, changed)
}

// watched are paths that are watched. So are the directories that they are in,
// so that a file may be replaced, or the link ..data on its way, as a
// ConfigMap's is.
type watched struct {
	*fsnotify.Watcher
	paths []string
}

func watchPaths(paths []string) (*watched, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching files: %w", err)
	}
	for _, p := range paths {
		if err := watchPath(w, p); err != nil {
			w.Close()
			return nil, fmt.Errorf("watching %s: %w", p, err)
		}
	}
	return &watched{w, paths}, nil
}

// run calls changed after each change until ctx ends, and closes the watch.
func (w *watched) run(ctx context.Context, changed func()) error {
	defer w.Close()
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.Events:
			if !ok {
				return errors.New("watching files: the watch ended")
			}
			if e.Op != fsnotify.Chmod && concerns(w.Watcher, e.Name, w.paths) {
				quiet = time.After(settle)
			}
		case <-w.Errors: // events were lost
			quiet = time.After(settle)
		case <-quiet:
			quiet = nil
			changed()
		}
	}
}

// watchPath watches a path, by the directory that it is in, and by itself if
// it is a directory.
func watchPath(w *fsnotify.Watcher, path string) error {
	path = filepath.Clean(path)
	if err := w.Add(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return err
	}
	return w.Add(path)
}

// dataLink is the symbolic link that is swapped when a mounted ConfigMap changes.
const dataLink = "..data"

// concerns tells whether a change at name is one at a path. A path that came
// back is watched again.
func concerns(w *fsnotify.Watcher, name string, paths []string) bool {
	for _, p := range paths {
		p = filepath.Clean(p)
		switch dir := filepath.Dir(name); {
		case name == p:
			watchPath(w, p) // one that is gone is watched when it comes back
			return true
		case dir == p, dir == filepath.Dir(p) && filepath.Base(name) == dataLink:
			return true
		}
	}
	return false
}

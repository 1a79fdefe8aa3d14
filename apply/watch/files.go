package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Files is the source for a node without an API server: a file, or a directory
// with .yaml, .yml and .json files, which is read again when it changes.
type Files struct {
	Path  string
	Store *Store
	Log   *slog.Logger
	// Limit is how many bytes the files may have together; 0: any number.
	Limit int64
	// AllowEmpty takes a snapshot that is empty for one of a cluster without
	// Services, and not for what a failed kubectl left.
	AllowEmpty bool
	// Report is told what there is to say about the files each time they are
	// read. Objects with errors are left out.
	Report func(diag.List)

	skipped map[string]bool // what is no file, and was named
}

// Read reads the files into the Store. Of files that may be half written, and
// of those that have no Service and no Node, nothing is taken: then the Store
// stays as it is, and the error says why.
func (f *Files) Read() error {
	names, err := f.objectFiles()
	if err != nil {
		return err
	}
	snap := snapshot.New()
	var diags diag.List
	left := f.Limit
	for _, name := range names {
		data, err := f.readFile(name, &left)
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
	if !f.AllowEmpty && len(snap.Services())+len(snap.Nodes()) == 0 {
		return fmt.Errorf("%s: has no Service and no Node, and all rules for Services would go: say --allow-empty if that is meant", f.Path)
	}
	diags.Add(snap.Finish()...)
	f.Report(diags)
	f.Store.replace(func(s *snapshot.Snapshot) snapshot.Dirty { return s.Update(snap) })
	return nil
}

// readFile reads a file, and takes what it has off from what is left of the limit.
func (f *Files) readFile(name string, left *int64) ([]byte, error) {
	// What became a named pipe a moment ago does not hold up the opening.
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(name, info)
	}
	from := io.Reader(file)
	if f.Limit > 0 {
		from = io.LimitReader(file, *left+1)
	}
	data, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	if *left -= int64(len(data)); f.Limit > 0 && *left < 0 {
		return nil, fmt.Errorf("%s: with it the snapshot has more than the %d bytes of --snapshot-limit", name, f.Limit)
	}
	if !f.AllowEmpty && len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s: is empty, as a failed kubectl leaves a file behind: remove it, or say --allow-empty if that is meant", name)
	}
	return data, nil
}

func notRegular(name string, info fs.FileInfo) error {
	return fmt.Errorf("%s: must be a file or a directory, is %s", name, kindOf(info.Mode()))
}

// kindOf names what is neither a file nor a directory.
func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return m.String()
}

// Run reads the files, reports first what came of that, and follows them until
// ctx ends. What cannot be read later is told, and tried again when something
// changes.
func (f *Files) Run(ctx context.Context, read func(error)) error {
	w, err := watchPaths([]string{f.Path})
	read(f.Read()) // after the watch is set: what changes from here on is seen
	if err != nil {
		return err
	}
	return w.run(ctx, time.After, func() { read(f.Read()) })
}

// objectFiles returns the files of a directory that can hold objects, in order
// of name; what is no directory stands for itself. What is no file, and would
// hold up its reader, is named once, and passed over.
func (f *Files) objectFiles() ([]string, error) {
	info, err := os.Stat(f.Path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return []string{f.Path}, nil
	case !info.IsDir():
		return nil, notRegular(f.Path, info)
	}
	names, err := candidates(f.Path)
	if err != nil {
		return nil, err
	}
	skipped := map[string]bool{}
	files := slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Stat(name)
		if err != nil || info.Mode().IsRegular() {
			return errors.Is(err, fs.ErrNotExist) // it went, or is a link to nothing
		}
		if skipped[name] = true; !f.skipped[name] {
			f.Log.Warn("is not read: it is no file", "path", name, "is", kindOf(info.Mode()))
		}
		return true
	})
	f.skipped = skipped
	return files, nil
}

// candidates are the names in a directory that can be those of files with objects.
func candidates(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if snapshot.NamesObjects(e.Name()) && !e.IsDir() {
			names = append(names, filepath.Join(dir, e.Name()))
		}
	}
	return names, nil
}

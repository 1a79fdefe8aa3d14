package watch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Files is the source for a node without an API server: files, and directories
// with all below them, in the forms that package files reads, which are read again
// when one of them changes.
type Files struct {
	Paths []string
	Store *Store
	Log   *slog.Logger
	// Limit is how many bytes the files may have together; 0: any number.
	Limit int64
	// AllowEmpty takes a snapshot that is empty for one of a cluster without
	// Services, and not for what a failed kubectl left.
	AllowEmpty bool
	// Begin, if set, is called before each reading.
	Begin func()
	// Report is told what there is to say about the files each time they are
	// read. Objects with errors are left out.
	Report func(diag.List)
	// Again asks for another reading, changed or not; nil: nobody does.
	Again <-chan struct{}

	skipped map[string]bool // what is no file, and was named
}

// Read reads the files into the Store. Of files that may be half written, and
// of those that lack what any cluster has, nothing is taken: then the Store
// stays as it is, and the error says why.
func (f *Files) Read() error {
	if f.Begin != nil {
		f.Begin()
	}
	found, err := f.find()
	if err != nil {
		return err
	}
	snap := snapshot.New()
	var diags diag.List
	reader := snapshot.Reader{Most: diag.MostAlike, CutOff: diag.Error, Forget: true}
	left := cmp.Or(f.Limit, files.Unlimited)
	for _, file := range found {
		data, err := files.Read(regular{}, file.Name, &left)
		if errors.Is(err, files.ErrTooMuch) {
			err = files.TooMuch("with it the snapshot", f.Limit)
		}
		if err == nil && !f.AllowEmpty && len(bytes.TrimSpace(data)) == 0 {
			err = errors.New("is empty, as a failed kubectl leaves a file behind: write it again, or say --allow-empty if that is meant")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file.Name, err)
		}
		diags.Add(reader.Decode(snap, file.Name, data, file.FromDirectory)...)
	}
	for _, d := range diags {
		if d.Severity == diag.Error && d.Object == "" {
			return errors.New(d.String())
		}
	}
	if why := reader.Lacks(snap); why != "" && !f.AllowEmpty {
		return fmt.Errorf("%s: %s: say --allow-empty if that is meant", strings.Join(f.Paths, ", "), why)
	}
	diags.Add(snap.Finish()...)
	f.Report(diags.Sorted().Fewer(diag.MostAlike))
	f.Store.replace(f.Log, func(s *snapshot.Snapshot) snapshot.Dirty { return s.Update(snap) })
	return nil
}

// find returns the files to read. What is no file, and would hold up its reader,
// is named once, and passed over.
func (f *Files) find() ([]files.File, error) {
	var all []files.File
	skipped := map[string]bool{}
	for _, path := range f.Paths {
		found, err := files.Find(regular{}, path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, p := range found.Passed {
			if skipped[p.Name] = true; !f.skipped[p.Name] {
				f.Log.Warn("is not read: it is no file", "path", p.Name, "is", p.Is)
			}
		}
		for _, u := range found.Unreadable {
			if !errors.Is(u.Err, fs.ErrNotExist) { // it went, or is a link to nothing
				return nil, fmt.Errorf("%s: %w", u.Name, u.Err)
			}
		}
		all = append(all, found.Files...)
	}
	f.skipped = skipped
	return all, nil
}

// regular is the machine's file system, of which files alone can be opened.
type regular struct{}

func (regular) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (regular) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

func (regular) Open(name string) (fs.File, error) {
	// What became a named pipe a moment ago does not hold up the opening.
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("must be a file or a directory, is %s", files.KindOf(info.Mode()))
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Run reads the files, reports first what came of that, and follows them until
// ctx ends. What cannot be read later is told, and tried again when something
// changes, or Again asks for it.
func (f *Files) Run(ctx context.Context, read func(error)) error {
	w, err := watchPaths(f.Paths, newNotices)
	if err == nil && w.polls != nil {
		f.Log.Warn("changes of the snapshot are looked for every "+pollEvery.String(), "err", w.polls)
	}
	read(f.Read()) // after the watch is set: what changes from here on is seen
	if err != nil {
		return err
	}
	return w.run(ctx, time.After, f.Again, func() { read(f.Read()) })
}

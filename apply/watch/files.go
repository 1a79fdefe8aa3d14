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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

// Files is the source for a node without an API server. It reads files, and directories
// recursively, in the formats of package files. It reads them again when one of them changes.
type Files struct {
	Paths []string
	Store *Store
	Log   *slog.Logger
	// Limit is the largest total size of the files in bytes; 0 for no limit.
	Limit int64
	// AllowEmpty accepts an empty snapshot as a cluster without Services. Otherwise it is rejected as
	// the output of a failed kubectl.
	AllowEmpty bool
	// NodeName is optional. A snapshot with Nodes must contain the one of this name: rules without its
	// addresses, zone and endpoints would replace the node's own.
	NodeName string
	// Begin is optional. It is called before each read.
	Begin func()
	// Report is called with the findings of each read, and with the objects that have errors. The Store
	// keeps their last good versions, if there were any.
	Report func(diag.List, []*snapshot.Invalid)
	// Reread requests another read, whether or not something changed; optional.
	Reread <-chan struct{}
	// Every is how often the files are examined; 0 for once a second.
	Every time.Duration

	skipped  map[string]bool // named paths that are not regular files
	accepted struct {        // the last read that was accepted
		files   int             // the removal of one is deliberate
		invalid map[string]bool // objects that are in use without a good version
	}
}

// manyLost is the number of Services that a file cannot lose in one change if it also loses most of them. Small
// files are written in one piece, and their owners remove a few Services at a time.
const manyLost = 10

// Read reads the files into the Store. It reads nothing from files that may be incomplete, or that
// lack what every cluster has. The Store is then unchanged, and the error states the reason.
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
	reader := manifest.Reader{MaxSimilar: diag.MaxSimilar, Whole: true, NoPositions: true}
	left := cmp.Or(f.Limit, files.Unlimited)
	for _, file := range found {
		data, err := files.Read(regular{}, file.Name, &left)
		if errors.Is(err, files.ErrTooMuch) {
			err = files.TooMuch("with this file, the snapshot", f.Limit)
		}
		if err == nil && !f.AllowEmpty && len(bytes.TrimSpace(data)) == 0 {
			err = errors.New("is empty, as a failed kubectl leaves a file behind: write it again, or use --allow-empty if that is intended")
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
	if why := reader.Missing(snap); why != "" && !f.AllowEmpty {
		return fmt.Errorf("%s: %s: use --allow-empty if that is intended", strings.Join(f.Paths, ", "), why)
	}
	invalid := compiler.Invalid(snap)
	for _, w := range reader.Written() {
		for _, r := range w.Rejected {
			if !r.OfType {
				invalid.Add(r.Diagnostic)
			}
		}
	}
	invalid.Sort()
	had, used := 0, f.accepted.invalid
	f.Store.View(func(now *snapshot.Snapshot) {
		used = snap.Keep(now, invalid, used)
		had, _, _ = now.Count()
	})
	invalid = slices.DeleteFunc(invalid, func(d diag.Diagnostic) bool { return used[d.Object] })
	diags = slices.DeleteFunc(diags, func(d diag.Diagnostic) bool { // of versions that are not used
		return slices.ContainsFunc(invalid, func(i diag.Diagnostic) bool { return i.Object == d.Object })
	})
	diags.Add(slices.Concat(invalid, snap.Finish())...)
	if others := snap.Nodes(); f.NodeName != "" && len(others) > 0 && snap.Node(f.NodeName) == nil {
		return fmt.Errorf("%s: must contain Node %s, as it contains Node %s: add it, or set --hostname-override to the name of the node",
			strings.Join(f.Paths, ", "), f.NodeName, others[0].Name)
	}
	if has, _, _ := snap.Count(); has*2 < had && had-has >= manyLost && len(found) >= f.accepted.files && (has > 0 || !f.AllowEmpty) {
		return fmt.Errorf("%s: contains %d Services, but %d are in force: it may be cut off: if it is complete, restart the daemon", strings.Join(f.Paths, ", "), has, had)
	}
	f.accepted.files, f.accepted.invalid = len(found), used
	f.Report(diags.Sorted().Summarize(diag.MaxSimilar), snap.Invalid())
	var gone []string
	f.Store.replace(f.Log, func(s *snapshot.Snapshot) snapshot.Dirty {
		for _, svc := range s.Services() {
			if snap.Service(svc.Name) == nil {
				gone = append(gone, svc.Name.String())
			}
		}
		return s.Update(snap)
	})
	if len(gone) > 0 { // on purpose, or the file was cut off after most Services
		f.Log.Warn("Services are no longer in the snapshot: their rules are removed", "removed", len(gone), "services", strings.Join(apply.Lines(gone), ", "))
	}
	return nil
}

// find returns the files to read. Other files, such as pipes, which would block the reader, are
// logged once and skipped.
func (f *Files) find() ([]files.File, error) {
	var all []files.File
	skipped := map[string]bool{}
	for _, path := range f.Paths {
		found, err := files.Find(regular{}, path, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, p := range found.Passed {
			if skipped[p.Name] = true; !f.skipped[p.Name] {
				f.Log.Warn("skipped: not a file", "path", p.Name, "is", p.Is)
			}
		}
		for _, u := range found.Unreadable {
			switch _, err := os.Lstat(u.Name); {
			case err == nil && errors.Is(u.Err, fs.ErrNotExist):
				return nil, fmt.Errorf("%s: is a link to a missing file: remove the link, or restore the file", u.Name)
			case !errors.Is(err, fs.ErrNotExist): // otherwise removed meanwhile
				return nil, fmt.Errorf("%s: %w", u.Name, u.Err)
			}
		}
		all = append(all, found.Files...)
	}
	f.skipped = skipped
	return all, nil
}

// regular is the host's file system, restricted to opening regular files.
type regular struct{}

func (regular) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (regular) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

func (regular) Open(name string) (fs.File, error) {
	// O_NONBLOCK keeps the open from blocking if the file was just replaced by a named pipe.
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

// Unreadable reports whether an error of Read means that a file exists, and could not be read. The
// cause may be temporary.
func Unreadable(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok && !errors.Is(err, fs.ErrNotExist)
}

// Run reads the files, calls read with the result, and follows the files until ctx ends. After a
// failed read it tries again when something changes or Reread requests it. If a file cannot be read,
// it also tries again after a while.
func (f *Files) Run(ctx context.Context, read func(error)) {
	unreadable := 0 // consecutive
	Poll(ctx, f.Paths, f.Every, f.Reread, func() (retry time.Duration) {
		err := f.Read()
		read(err)
		if !Unreadable(err) {
			unreadable = 0
			return 0
		}
		unreadable++
		return apply.Backoff(unreadable, apply.FirstRetry, LongestRetry)
	})
}

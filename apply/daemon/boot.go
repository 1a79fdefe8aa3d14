package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
)

// bootFile stores the Programs that were last applied. The methods of a nil bootFile do nothing.
//
// While the kernel contains no newer rules than the file, a note beside the lock has its path; otherwise
// it is empty. After a restart, rules with an empty note may be newer than the file. Without a note, the
// node was restarted, or an older version wrote the rules.
type bootFile struct {
	files Files
	path  string
	log   *slog.Logger
	lock  *apply.Lock // keeps the note

	mu      sync.Mutex // also held while the note changes, so that it is empty before each commit
	begun   int        // commits
	applied int        // commits before the last change of the applied Programs
	changed bool       // the applied Programs changed since the last write
	cleared bool       // the note is empty

	failed  atomic.Pointer[string] // why the file does not contain the applied Programs; nil if it does
	invalid atomic.Pointer[string] // why the content of the file was not used; nil if it was
}

// writeInterval is the shortest interval of writes. A start with slightly older Programs is harmless.
const writeInterval = 30 * time.Second

// read returns the content of the file. ok is false if it cannot be applied on a node. A failure,
// or a missing file, has no other effect.
func (b *bootFile) read(node string) (programs ir.Programs, ok bool) {
	if b == nil {
		return ir.Programs{}, false
	}
	data, err := b.files.ReadFile(b.path)
	if err != nil {
		if !os.IsNotExist(err) {
			b.reject(err)
		}
		return ir.Programs{}, false
	}
	if file, err := b.files.Stat(b.path); err == nil {
		if err := trusted(file); err != nil {
			b.reject(err)
			return ir.Programs{}, false
		}
	}
	programs, err = ir.ReadJSON(strings.NewReader(string(data)))
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("is truncated")
	} else if err == nil {
		err = fits(programs, node)
	}
	if err != nil {
		b.reject(err)
	}
	return programs, err == nil
}

// fits returns why Programs are not for a node: they contain its addresses, pods and zone.
func fits(programs ir.Programs, node string) error {
	for _, f := range ir.Families() {
		switch p := programs.Of(f); {
		case p == nil:
			return fmt.Errorf("has no %s", f)
		case p.Node.Mode != modeOf(programs):
			return fmt.Errorf("is for mode %s in IPv4, and for mode %s in %s", modeOf(programs), p.Node.Mode, f)
		case p.Node.Name != node:
			return fmt.Errorf("is for node %q, but this one is %q", p.Node.Name, node)
		}
	}
	return nil
}

func (b *bootFile) reject(err error) {
	why := err.Error()
	b.invalid.Store(&why)
	b.log.Error("the boot file is invalid", "file", b.path, "err", err)
}

// name returns the name of the file in messages.
func (b *bootFile) name() string { return "the boot file " + b.path }

// isCurrent reports whether the kernel contains the rules of the file, unless another program changed
// them.
func (b *bootFile) isCurrent() bool {
	path, ok := b.lock.Note()
	return !ok || path == b.path
}

// beginCommit records that the kernel's rules may differ from the file from now on.
func (b *bootFile) beginCommit() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun++
	if !b.cleared {
		b.cleared = b.lock.SetNote("") == nil
	}
}

// note records that the kernel contains the rules of the file, unless a commit began after the first
// ones.
func (b *bootFile) note(commits int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.begun != commits {
		return nil
	}
	b.cleared = false
	return b.lock.SetNote(b.path)
}

// markChanged records that the applied Programs changed.
func (b *bootFile) markChanged() {
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.changed, b.applied = true, b.begun
	}
}

// run writes changes of the applied Programs until ctx ends.
func (b *bootFile) run(ctx context.Context, applied func() ir.Programs) {
	if b == nil {
		return
	}
	wait := time.Second
	for {
		select {
		case <-ctx.Done():
			b.write(applied)
			return
		case <-time.After(wait):
		}
		if wait = time.Second; b.write(applied) {
			wait = writeInterval
		}
	}
}

// write reports whether there was a change to write.
func (b *bootFile) write(applied func() ir.Programs) bool {
	b.mu.Lock()
	changed, commits := b.changed, b.applied
	b.changed = false
	b.mu.Unlock()
	if !changed {
		return false
	}
	programs := applied()
	err := b.files.WriteFile(b.path, func(w io.Writer) error { return ir.WriteJSON(w, programs) })
	if err == nil {
		err = b.note(commits)
	}
	if err != nil {
		b.mu.Lock()
		b.changed = true // the cause, such as a full disk, may disappear
		b.mu.Unlock()
		why := err.Error()
		if was := b.failed.Swap(&why); was == nil || *was != why {
			b.log.Error("the boot file is outdated, retrying to write it", "file", b.path, "err", err)
		}
		return true
	}
	b.invalid.Store(nil)
	if b.failed.Swap(nil) != nil {
		b.log.Info("the boot file is current again", "file", b.path)
	}
	return true
}

// report adds the file to a Status.
func (b *bootFile) report(st *status.Status) {
	if b == nil {
		return
	}
	f := statFile(b.files, b.path)
	if why := b.failed.Load(); why != nil {
		f.Error = *why
	}
	if why := b.invalid.Load(); why != nil {
		f.Invalid = *why
	}
	st.BootFile = f
}

// statFile returns the current state of a file.
func statFile(files Files, path string) *status.File {
	f := &status.File{Path: path}
	if info, err := files.Stat(path); err == nil {
		f.Modified = info.ModTime()
	}
	return f
}

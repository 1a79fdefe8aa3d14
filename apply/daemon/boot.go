package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// bootFile keeps the Programs that were last in force. A nil one does nothing.
type bootFile struct {
	files Files
	path  string
	log   *slog.Logger

	changed atomic.Bool            // what is in force, since it was last written
	failed  atomic.Pointer[string] // why the file does not have what is in force; nil: it has
	refused atomic.Pointer[string] // why nothing of what the file has is in force; nil: it may be
}

// keepEvery is how often the boot file is written at most: to start with what
// was in force a little before does no harm.
const keepEvery = 30 * time.Second

// read returns what the file holds, and reports whether that can be put in force on a node.
// It makes no difference to what comes after if that fails, or there is no file.
func (b *bootFile) read(node string) (programs ir.Programs, ok bool) {
	if b == nil {
		return ir.Programs{}, false
	}
	data, err := b.files.ReadFile(b.path)
	if err != nil {
		if !os.IsNotExist(err) {
			b.leftOut(err)
		}
		return ir.Programs{}, false
	}
	if file, err := b.files.Stat(b.path); err == nil {
		if err := trusted(file); err != nil {
			b.leftOut(err)
			return ir.Programs{}, false
		}
	}
	programs, err = ir.ReadJSON(strings.NewReader(string(data)))
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("ends before its end: it was cut off")
	} else if err == nil {
		err = fits(programs, node)
	}
	if err != nil {
		b.leftOut(err)
	}
	return programs, err == nil
}

// fits says why Programs are not for a node: addresses, pods and zone are its own.
func fits(programs ir.Programs, node string) error {
	for _, f := range ir.Families() {
		switch p := programs.Of(f); {
		case p == nil:
			return fmt.Errorf("has no %s", f)
		case p.Node.Mode != modeOf(programs):
			return fmt.Errorf("is for mode %s in IPv4, and for mode %s in %s", modeOf(programs), p.Node.Mode, f)
		case p.Node.Name != node:
			return fmt.Errorf("is of node %q, and this one is %q", p.Node.Name, node)
		}
	}
	return nil
}

func (b *bootFile) leftOut(err error) {
	why := err.Error()
	b.refused.Store(&why)
	b.log.Error("what was last in force is left out", "file", b.path, "err", err)
}

// name is how messages name the file; "": there is none.
func (b *bootFile) name() string {
	if b == nil {
		return ""
	}
	return "the boot file " + b.path
}

// offer notes that something else is in force now.
func (b *bootFile) offer() {
	if b != nil {
		b.changed.Store(true)
	}
}

// keep writes what is in force when that was changed, until ctx ends.
func (b *bootFile) keep(ctx context.Context, inForce func() ir.Programs) {
	if b == nil {
		return
	}
	wait := time.Second
	for {
		select {
		case <-ctx.Done():
			b.write(inForce)
			return
		case <-time.After(wait):
		}
		if wait = time.Second; b.write(inForce) {
			wait = keepEvery
		}
	}
}

// write reports whether there was anything to write.
func (b *bootFile) write(inForce func() ir.Programs) bool {
	if !b.changed.Swap(false) {
		return false
	}
	programs := inForce()
	if err := b.files.WriteFile(b.path, func(w io.Writer) error { return ir.WriteJSON(w, programs) }); err != nil {
		b.changed.Store(true) // a disk that is full now may not be so later
		why := err.Error()
		if was := b.failed.Swap(&why); was == nil || *was != why {
			b.log.Error("the boot file does not have what is in force: will be tried again", "file", b.path, "err", err)
		}
		return true
	}
	b.refused.Store(nil)
	if b.failed.Swap(nil) != nil {
		b.log.Info("the boot file has what is in force, after failures", "file", b.path)
	}
	return true
}

// report adds the file to a Status.
func (b *bootFile) report(st *Status) {
	if b == nil {
		return
	}
	f := statFile(b.files, b.path)
	if why := b.failed.Load(); why != nil {
		f.Error = *why
	}
	if why := b.refused.Load(); why != nil {
		f.Refused = *why
	}
	st.BootFile = f
}

// statFile describes a file as it is now.
func statFile(files Files, path string) *File {
	f := &File{Path: path}
	if info, err := files.Stat(path); err == nil {
		f.Modified = info.ModTime()
	}
	return f
}

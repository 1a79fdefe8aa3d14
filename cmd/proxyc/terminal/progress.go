package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows the current step of a long command on a terminal, in one line that the first
// output removes. The methods of a nil Progress do nothing. It is safe for concurrent use.
type Progress struct {
	mu        sync.Mutex
	w         io.Writer
	what      string
	done, all int // counts; nothing is counted while all is 0
	shown     bool
	stop      func()
	regularly func(after, every time.Duration, f func()) (stop func())
}

// NewProgress returns a Progress shown on w. regularly is Regularly, or a test's replacement.
func NewProgress(w io.Writer, regularly func(after, every time.Duration, f func()) (stop func())) *Progress {
	return &Progress{w: w, regularly: regularly}
}

// Writer returns a Writer to w that removes the line before its first output.
func (p *Progress) Writer(w io.Writer) io.Writer { return &endsProgress{p, w} }

// Doing sets the current step. The first call starts the timer.
func (p *Progress) Doing(what string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.what, p.done, p.all = what, 0, 0
	if p.shown {
		p.write()
	}
	begins := p.stop == nil && p.w != nil
	p.mu.Unlock()
	if begins {
		stop := p.regularly(progressAfter, progressEvery, p.show)
		p.mu.Lock()
		p.stop = stop
		p.mu.Unlock()
	}
}

// When the line appears, and how often it is updated.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// Regularly calls f after a time, and then periodically until stop is called.
func Regularly(after, every time.Duration, f func()) (stop func()) {
	quit := make(chan struct{})
	go func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		for {
			select {
			case <-quit:
				return
			case <-timer.C:
				f()
				timer.Reset(every)
			}
		}
	}()
	return sync.OnceFunc(func() { close(quit) })
}

// Columns returns the width of a terminal; 0 if the file is none.
func Columns(f *os.File) int {
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// endsProgress is a Writer that removes the line before its first output.
type endsProgress struct {
	p *Progress
	w io.Writer
}

func (o *endsProgress) Write(b []byte) (int, error) {
	o.p.End()
	return o.w.Write(b)
}

// Count adds to the completed and the total work.
func (p *Progress) Count(done, all int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.all = p.done+done, p.all+all
}

func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		p.shown = true
		p.write()
	}
}

const clearLine = "\r\x1b[K"

func (p *Progress) write() {
	text := p.what
	if p.all > 0 {
		text = fmt.Sprintf("%s: %d of %d", p.what, p.done, p.all)
	}
	fmt.Fprintf(p.w, "%sproxyc: %s ...", clearLine, text) // an error is irrelevant
}

// End removes the line permanently.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, clearLine)
	}
	if p.stop != nil {
		p.stop()
	}
	p.w, p.shown = nil, false
}

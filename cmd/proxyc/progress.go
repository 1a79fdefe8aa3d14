package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/proxyc/proxyc/ir/prove"
)

// progress tells on a terminal what takes so long, in one line that goes with the
// first output. A nil *progress tells nothing. It is safe for concurrent use.
type progress struct {
	mu        sync.Mutex
	w         io.Writer
	what      string
	done, all int // of what is counted; all 0: nothing is
	shown     bool
	stop      func()
}

// When the line appears, and how often it is written again.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// regularly calls f after some time, and then again and again until stop was called.
func regularly(after, every time.Duration, f func()) (stop func()) {
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

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// telling returns an env that tells on stderr how far it is, until it has something else
// to say, and what ends that.
func (e *env) telling() (*env, func()) {
	if !e.terminal {
		return e, func() {}
	}
	p := &progress{w: e.stderr}
	told := *e
	told.progress = p
	told.stdout, told.stderr = &endsProgress{p, e.stdout}, &endsProgress{p, e.stderr}
	return &told, p.end
}

// endsProgress is a Writer before whose first output the line goes.
type endsProgress struct {
	p *progress
	w io.Writer
}

func (o *endsProgress) Write(b []byte) (int, error) {
	o.p.end()
	return o.w.Write(b)
}

// doing says what is done now. The first one begins to count the time.
func (e *env) doing(what string) {
	p := e.progress
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
		stop := e.regularly(progressAfter, progressEvery, p.show)
		p.mu.Lock()
		p.stop = stop
		p.mu.Unlock()
	}
}

// count adds to what was done and to what there is to do.
func (p *progress) count(done, all int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.all = p.done+done, p.all+all
}

// comparing says that packets are compared, and how far that is.
func (e *env) comparing(ctx context.Context) context.Context {
	e.doing("comparing what becomes of packets, destinations")
	return prove.WithProgress(ctx, e.progress.count)
}

func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		p.shown = true
		p.write()
	}
}

const clearLine = "\r\x1b[K"

func (p *progress) write() {
	text := p.what
	if p.all > 0 {
		text = fmt.Sprintf("%s: %d of %d", p.what, p.done, p.all)
	}
	fmt.Fprintf(p.w, "%sproxyc: %s ...", clearLine, text) // who cannot be told misses nothing
}

// end takes the line away, for good.
func (p *progress) end() {
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

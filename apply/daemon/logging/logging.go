// Package logging writes the daemon's log in kube-proxy's formats, so that existing log processing
// works.
package logging

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"path"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/compiler/config"
)

// Logger is the log as configured.
type Logger struct {
	*slog.Logger
	level *slog.LevelVar // may be changed during use
	info  *stream        // destination of messages that are no errors
	every time.Duration  // flushFrequency
}

// New returns a log, and makes the API client use it. Messages are written to stderr. With
// splitStream only errors are, and the rest to stdout.
func New(stdout, stderr io.Writer, c *config.Logging) *Logger {
	l := &Logger{level: &slog.LevelVar{}, info: &stream{w: bufio.NewWriter(stderr)}, every: c.FlushFrequency.Duration.Duration}
	l.SetVerbosity(c.Verbosity)
	options, format := c.Options.Text, textFormat
	if c.Format == "json" {
		options, format = c.Options.JSON, newJSONFormat
	}
	h := &handler{level: l.level, modules: c.VModule}
	if options.SplitStream {
		l.info = newStream(stdout, options.InfoBufferSize)
		h.errors = format(stderr)
	}
	h.info = format(l.info)
	if h.errors == nil {
		h.errors = h.info
	}
	l.Logger = slog.New(h)
	klog.SetSlogLogger(l.Logger)
	return l
}

// SetVerbosity sets the level to klog's verbosity v. Debug messages, which only matter for problems,
// have verbosity 4.
func (l *Logger) SetVerbosity(v uint32) { l.level.Set(verbosity(v)) }

// Flush writes buffered messages. An error cannot be reported.
func (l *Logger) Flush() { l.info.flush() }

// Run writes buffered messages, at least every flushFrequency, until ctx ends.
func (l *Logger) Run(ctx context.Context) error {
	if l.info.size > 0 {
		apply.Every(ctx, l.every, l.Flush)
	}
	return nil
}

// stream is a destination of messages, buffered if size is not 0.
type stream struct {
	size int

	mu sync.Mutex
	w  *bufio.Writer
}

func newStream(w io.Writer, buffer config.Quantity) *stream {
	size, err := resource.ParseQuantity(string(buffer))
	if err != nil { // the configuration is valid, so it was not set
		return &stream{w: bufio.NewWriter(w)}
	}
	n := int(size.Value())
	return &stream{size: n, w: bufio.NewWriterSize(w, n)}
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.w.Write(p)
	if s.size == 0 && err == nil {
		err = s.w.Flush()
	}
	return n, err
}

func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.Flush()
}

// handler filters messages by level and vmodule, and separates errors from the rest.
type handler struct {
	info, errors slog.Handler
	level        *slog.LevelVar
	modules      []config.VModule
}

func (h *handler) Enabled(_ context.Context, l slog.Level) bool {
	for _, m := range h.modules {
		if l >= verbosity(m.Verbosity) {
			return true // if it is from that module; see Handle
		}
	}
	return l >= h.level.Level()
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case r.Level < h.level.Level() && !h.asked(&r):
		return nil
	case r.Level >= slog.LevelError:
		return h.errors.Handle(ctx, r)
	}
	return h.info.Handle(ctx, r)
}

// asked reports whether vmodule selects a message. The first pattern that matches its source file,
// without path and .go, decides.
func (h *handler) asked(r *slog.Record) bool {
	file := sourceFile(r)
	for _, m := range h.modules {
		if ok, err := path.Match(m.FilePattern, file); ok && err == nil {
			return r.Level >= verbosity(m.Verbosity)
		}
	}
	return false
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(of slog.Handler) slog.Handler { return of.WithAttrs(attrs) })
}

func (h *handler) WithGroup(name string) slog.Handler {
	return h.with(func(of slog.Handler) slog.Handler { return of.WithGroup(name) })
}

func (h *handler) with(change func(slog.Handler) slog.Handler) slog.Handler {
	return &handler{info: change(h.info), errors: change(h.errors), level: h.level, modules: h.modules}
}

// verbosity returns the level for klog's verbosity.
func verbosity(v uint32) slog.Level { return -slog.Level(v) }

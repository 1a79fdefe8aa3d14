package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2/textlogger"
)

// textFormat writes klog's lines: `I1122 05:12:33.123456 12345 file.go:123] "message" key="value"`.
func textFormat(w io.Writer) slog.Handler {
	everything := textlogger.Verbosity(math.MaxInt8) // handler filters by level
	return logr.ToSlogHandler(textlogger.NewLogger(textlogger.NewConfig(everything, textlogger.Output(w))))
}

// jsonFormat writes kube-proxy's JSON objects, with keys ts, caller, msg and v. Errors have no v.
// kube-proxy does not distinguish warnings from information; here they have a key level.
type jsonFormat struct{ slog.Handler }

func newJSONFormat(w io.Writer) slog.Handler {
	return jsonFormat{slog.NewJSONHandler(w, &slog.HandlerOptions{AddSource: true, Level: slog.Level(math.MinInt), ReplaceAttr: jsonAttr})}
}

// jsonAttr converts values to kube-proxy's format.
func jsonAttr(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	if len(groups) > 0 {
		return a
	}
	switch v := a.Value.Any().(type) {
	case time.Time:
		if a.Key == slog.TimeKey {
			return slog.Float64("ts", float64(v.UnixNano())/float64(time.Millisecond))
		}
	case slog.Level:
		if a.Key == slog.LevelKey && v != slog.LevelWarn {
			return slog.Attr{}
		}
	case *slog.Source:
		if a.Key == slog.SourceKey {
			return slog.String("caller", caller(v))
		}
	case logr.Marshaler:
		return slog.Any(a.Key, v.MarshalLog())
	case fmt.Stringer:
		return slog.String(a.Key, v.String())
	}
	return a
}

// caller formats a source location as "directory/file.go:123".
func caller(s *slog.Source) string {
	dir, file := path.Split(s.File)
	return path.Join(path.Base(dir), file) + ":" + strconv.Itoa(s.Line)
}

func (f jsonFormat) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		return f.Handler.Handle(ctx, r)
	}
	with := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	with.AddAttrs(slog.Int("v", max(0, -int(r.Level))))
	r.Attrs(func(a slog.Attr) bool {
		with.AddAttrs(a)
		return true
	})
	return f.Handler.Handle(ctx, with)
}

func (f jsonFormat) WithAttrs(attrs []slog.Attr) slog.Handler {
	return jsonFormat{f.Handler.WithAttrs(attrs)}
}

func (f jsonFormat) WithGroup(name string) slog.Handler {
	return jsonFormat{f.Handler.WithGroup(name)}
}

// sourceFile returns the source file of a message, without path and .go.
func sourceFile(r *slog.Record) string {
	source, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
	return strings.TrimSuffix(path.Base(source.File), ".go")
}

package watch

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// hush makes client-go say only at verbosity 4 that it failed to watch, each
// time that it tries: Contact says so once.
func hush(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(hushed{log.Handler()}))
}

type hushed struct{ slog.Handler }

// quiet is the level of verbosity 4.
const quiet = slog.Level(-4)

func (h hushed) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "Failed to watch" {
		if r.Level = quiet; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h hushed) WithAttrs(attrs []slog.Attr) slog.Handler { return hushed{h.Handler.WithAttrs(attrs)} }

func (h hushed) WithGroup(name string) slog.Handler { return hushed{h.Handler.WithGroup(name)} }

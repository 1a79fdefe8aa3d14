package watch

import (
	"context"
	"log/slog"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// quietRetries lowers client-go's messages about each attempt to watch to verbosity 4. Contact
// already logs the loss and the return of the server once each.
func quietRetries(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(retryHandler{log.Handler()}))
}

type retryHandler struct{ slog.Handler }

// retryMessages are the messages that quietRetries lowers.
var retryMessages = []string{"Failed to watch", "Warning: watch ended with error"}

// verbosity4 is the slog level of verbosity 4.
const verbosity4 = slog.Level(-4)

func (h retryHandler) Handle(ctx context.Context, r slog.Record) error {
	if slices.Contains(retryMessages, r.Message) {
		if r.Level = verbosity4; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h retryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return retryHandler{h.Handler.WithAttrs(attrs)}
}

func (h retryHandler) WithGroup(name string) slog.Handler {
	return retryHandler{h.Handler.WithGroup(name)}
}

package takeover

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// easeInterval is the interval of checks for leftovers that connections use.
const easeInterval = 5 * time.Second

// easing removes leftovers of an earlier mode when their connections have ended, or at a deadline.
type easing struct {
	deadline time.Duration
	now      func() time.Time
	log      *slog.Logger
	retrying func(work string, err error)
	added    chan eased

	left  []apply.Leftover
	kept  []status.Kept // of left, at the last check
	began time.Time

	published atomic.Pointer[status.Easing] // nil if nothing is left
}

// eased is a list of leftovers, some of which connections use.
type eased struct {
	left []apply.Leftover
	kept []status.Kept
}

// begin adds leftovers.
func (e *easing) begin(of eased) {
	if len(e.left) == 0 {
		e.began = e.now()
	}
	e.left, e.kept = of.left, of.kept
}

// current returns the state, or nil if nothing is left.
func (e *easing) current() *status.Easing {
	if len(e.left) == 0 {
		return nil
	}
	return &status.Easing{Since: e.began, Until: e.began.Add(e.deadline), Kept: e.kept}
}

// step checks once. over is the number of connections that were cut off at the deadline.
func (e *easing) step(ctx context.Context) (over int, err error) {
	kept, err := host.Ease(ctx, e.left)
	if len(kept) > 0 && e.now().Sub(e.began) >= e.deadline {
		for _, k := range kept {
			over = max(over, k.Connections)
		}
		kept, err = nil, host.Remove(ctx, e.left)
	}
	if err == nil {
		if e.kept = kept; len(kept) == 0 {
			e.left = nil
		}
	}
	return over, err
}

// add passes leftovers to run, unless ctx ends before.
func (e *easing) add(ctx context.Context, of eased) {
	select {
	case e.added <- of:
	case <-ctx.Done():
	}
}

// run removes the leftovers that it receives until ctx ends.
func (e *easing) run(ctx context.Context) {
	ticker := time.NewTicker(easeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case of := <-e.added:
			e.begin(of)
			e.published.Store(e.current())
			continue
		case <-ticker.C:
		}
		if len(e.left) == 0 {
			continue
		}
		over, err := e.step(ctx)
		e.published.Store(e.current())
		e.retrying("what connections of another mode kept", err)
		switch {
		case over > 0:
			e.log.Warn("the deadline for connections of the previous mode has passed: they are closed", "connections", over)
		case len(e.left) == 0:
			e.log.Info("the last connections of the previous mode have ended: its leftovers are removed")
		}
	}
}

// active reports whether leftovers remain.
func (e *easing) active() bool { return e.published.Load() != nil }

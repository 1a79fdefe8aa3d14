// Package takeover removes the rules of other proxies and of earlier modes once proxyc's own are
// applied. It keeps those of a running kube-proxy, and those that old connections use.
package takeover

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// Options are the connections of a takeover with the rest of a session.
type Options struct {
	Mode     ir.Mode
	Deadline time.Duration // after which leftovers are removed although connections use them
	Retry    time.Duration // longest wait after a failed removal
	Log      *slog.Logger
	// Retrying records the error of work that is retried; nil after success.
	Retrying func(work string, err error)
	Failed   func()                     // called if leftovers could not be found or removed completely
	Repaired func(since time.Time) bool // reports whether rules were repaired
	Send     func(watch.Event)
}

// Takeover takes a node over from other proxies and modes.
type Takeover struct {
	Options
	requests chan func(error) // to remove leftovers again, each called with the result
	peer     *peer
	easing   *easing
}

// New returns a takeover that has not begun.
func New(o Options) *Takeover {
	t := &Takeover{Options: o, requests: make(chan func(error))}
	t.easing = &easing{deadline: o.Deadline, now: time.Now, log: o.Log, retrying: o.Retrying, added: make(chan eased)}
	t.peer = newPeer(o.Mode, o.Repaired, t.easing, o.Log, o.Send, t.request)
	return t
}

// Begin looks for kube-proxy's rules before the first sync, which takes them over.
func (t *Takeover) Begin() { t.peer.begin() }

// Follow removes leftovers when no connection uses them, until ctx ends.
func (t *Takeover) Follow(ctx context.Context) { t.easing.run(ctx) }

// WatchKubeProxy tracks a kube-proxy on the node until ctx ends.
func (t *Takeover) WatchKubeProxy(ctx context.Context) { t.peer.watch(ctx) }

// Warning returns why packets may follow kube-proxy's rules; "" if there are none.
func (t *Takeover) Warning() string { return t.peer.published.Load().Warning() }

// Report adds the rules of others to a Status.
func (t *Takeover) Report(st *status.Status) {
	st.Easing, st.KubeProxy = t.easing.published.Load(), t.peer.published.Load()
}

// Run calls tidy, again on request, and after a failure until it succeeds. It returns when ctx ends.
func (t *Takeover) Run(ctx context.Context, tidy func(context.Context) error) {
	done := func(error) {} // of the request
	for failures := 0; ; {
		err := tidy(ctx)
		done(err)
		var retry <-chan time.Time
		if failures++; err == nil {
			failures = 0
		} else {
			retry = time.After(apply.Backoff(failures, apply.FirstRetry, t.Retry))
		}
		done = func(error) {}
		select {
		case <-ctx.Done():
			return
		case <-retry:
		case done = <-t.requests:
		}
	}
}

// Tidy removes leftovers. It calls done when as much as possible is removed.
func (t *Takeover) Tidy(ctx context.Context, inUse apply.Dataplane, done func()) error {
	if t.peer.maintained() {
		return errors.New("kube-proxy runs beside proxyc")
	}
	leftovers, err := host.Leftovers(ctx, t.Mode, inUse, false)
	kept, err := t.Remove(ctx, leftovers, err)
	if warning := host.Exposed(leftovers, inUse.Applied().Programs()); warning != "" {
		t.Log.Warn(warning)
	}
	if len(kept) > 0 {
		t.easing.add(ctx, eased{leftovers, kept})
	}
	done()
	debug.FreeOSMemory()
	return err
}

// Remove removes leftovers, and returns those that connections use. err is the error of the search
// for them.
func (t *Takeover) Remove(ctx context.Context, leftovers []apply.Leftover, err error) (kept []status.Kept, _ error) {
	for _, l := range leftovers {
		t.Log.Info("removing", "object", l.Object)
	}
	kept, easeErr := host.Ease(ctx, leftovers)
	for _, k := range kept {
		t.Log.Info("kept until its connections end", "object", k.Object, "connections", k.Connections)
	}
	if err = errors.Join(err, easeErr); err != nil {
		t.Failed()
	}
	t.Retrying("what other proxies left", err)
	return kept, err
}

// request makes Run tidy again, and waits for the result.
func (t *Takeover) request(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case t.requests <- func(err error) { done <- err }:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-done
}

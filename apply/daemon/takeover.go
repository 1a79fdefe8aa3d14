package daemon

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
)

// takeover removes leftovers of other proxies and modes after the rules are applied. It keeps those
// of a running kube-proxy, and those that old connections use.
type takeover struct {
	mode   ir.Mode
	peer   *peer
	easing *easing
	log    *slog.Logger
	faults *faults
	failed func()           // called if leftovers could not be found or removed completely
	again  chan func(error) // requests to remove leftovers again
}

// tidy removes leftovers. It calls done when as much as possible is removed.
func (t *takeover) tidy(ctx context.Context, inUse apply.Dataplane, done func()) error {
	if t.peer.maintained() {
		return errors.New("kube-proxy runs beside proxyc")
	}
	leftovers, err := host.Leftovers(ctx, t.mode, inUse)
	kept, err := t.remove(ctx, leftovers, err)
	if len(kept) > 0 {
		t.easing.give(ctx, eased{leftovers, kept})
	}
	done()
	debug.FreeOSMemory()
	return err
}

// remove removes leftovers, and returns those that connections use. err is the error of the search
// for them.
func (t *takeover) remove(ctx context.Context, leftovers []apply.Leftover, err error) (kept []status.Busy, _ error) {
	for _, l := range leftovers {
		t.log.Info("removing", "object", l.Object)
	}
	kept, easeErr := host.Ease(ctx, leftovers)
	for _, k := range kept {
		t.log.Info("stays until its connections end", "object", k.Object, "connections", k.Connections)
	}
	if warning := host.Exposed(leftovers); warning != "" {
		t.log.Warn(warning)
	}
	if err = errors.Join(err, easeErr); err != nil {
		t.failed()
	}
	t.faults.retrying("what other proxies left", err)
	return kept, err
}

// request makes the Reconciler tidy again, and waits for the result.
func (t *takeover) request(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case t.again <- func(err error) { done <- err }:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-done
}

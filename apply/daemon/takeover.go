package daemon

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// takeover removes what other proxies, and other modes, left on the node, once the rules are in
// force. It leaves what belongs to a kube-proxy that runs, and what old connections need.
type takeover struct {
	mode   ir.Mode
	peer   *peer
	easing *easing
	log    *slog.Logger
	faults *faults
	failed func()           // called each time that leftovers could not all be found and removed
	again  chan func(error) // requests to remove once more
}

// tidy removes leftovers. done is called when they are removed as far as possible.
func (t *takeover) tidy(ctx context.Context, inUse apply.Dataplane, done func()) error {
	if t.peer.maintained() {
		return errors.New("kube-proxy runs beside proxyc")
	}
	leftovers, err := Leftovers(ctx, t.mode, inUse)
	kept, err := t.remove(ctx, leftovers, err)
	if len(kept) > 0 {
		t.easing.give(ctx, eased{leftovers, kept})
	}
	done()
	debug.FreeOSMemory()
	return err
}

// remove removes leftovers, and returns what connections need of them; err says why more of
// them may not have been found.
func (t *takeover) remove(ctx context.Context, leftovers []apply.Leftover, err error) (kept []Busy, _ error) {
	for _, l := range leftovers {
		t.log.Info("removing", "object", l.Object)
	}
	kept, easeErr := ease(ctx, leftovers)
	for _, k := range kept {
		t.log.Info("stays until its connections end", "object", k.Object, "connections", k.Connections)
	}
	if warning := Exposed(leftovers); warning != "" {
		t.log.Warn(warning)
	}
	if err = errors.Join(err, easeErr); err != nil {
		t.failed()
	}
	t.faults.retrying("what other proxies left", err)
	return kept, err
}

// request has the Reconciler tidy up again, and waits for what comes of it.
func (t *takeover) request(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case t.again <- func(err error) { done <- err }:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-done
}

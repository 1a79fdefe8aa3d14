package ipvs

import (
	"context"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
)

// watching is what goes on beside the Dataplane's own work: listening to others,
// and looking after what drains.
type watching struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func (w *watching) close() {
	if w.cancel != nil {
		w.cancel()
	}
	w.all.Wait()
}

// ChangedBy returns who changed the rules since it was called last.
func (d *Dataplane) ChangedBy() []string { return apply.ChangedBy(d.rules) }

// Drift tells of changes of the rules and of addresses as soon as the kernel
// does. Of ip_vs and of sets it tells nothing: they are compared every
// CompareEvery. What drains is looked after from now on.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	ctx, d.watching.cancel = context.WithCancel(ctx)
	tokens := make(chan struct{}, 1)
	tell := func() {
		select {
		case tokens <- struct{}{}:
		default: // there is one
		}
	}
	d.watching.all.Go(func() { d.sweepUntil(ctx) })
	tables, err := d.rules.Drift(ctx)
	if tables != nil {
		d.watching.all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tables:
					tell()
				}
			}
		})
	}
	if listen, ok := d.k.(interface {
		listen(ctx context.Context, tell func(error)) (func(), error)
	}); ok {
		run, listenErr := listen.listen(ctx, func(err error) {
			if err != nil && d.log != nil {
				d.log.Error("changes of kube-ipvs0 by others", "err", err)
			}
			tell()
		})
		if listenErr != nil {
			return tokens, listenErr
		}
		d.watching.all.Go(run)
	}
	return tokens, err
}

func (d *Dataplane) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := d.sweep(ctx); err != nil && ctx.Err() == nil && d.log != nil {
				d.log.Error("backends that drain", "err", err)
			}
		}
	}
}

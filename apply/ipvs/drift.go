package ipvs

import (
	"context"
	"sync"

	"github.com/proxyc/proxyc/apply"
)

// background is the goroutines of Drift: monitoring of foreign changes, and the sweep of drains.
type background struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func (w *background) close() {
	if w.cancel != nil {
		w.cancel()
	}
	w.all.Wait()
}

// ChangedBy returns the programs that changed the rules since the last call.
func (d *Dataplane) ChangedBy() []string { return apply.ChangedBy(d.rules) }

// Drift reports foreign changes of rules and addresses when the kernel sends notifications. The
// kernel sends none for ip_vs and sets, which are compared every CompareEvery instead. Drift also
// starts the sweep of drains.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	ctx, d.background.cancel = context.WithCancel(ctx)
	tokens := make(chan struct{}, 1)
	report := func() { apply.Wake(tokens) }
	d.background.all.Go(func() { d.drains.run(ctx) })
	tables, err := d.rules.Drift(ctx)
	if tables != nil {
		d.background.all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tables:
					report()
				}
			}
		})
	}
	run, listenErr := d.drains.k.listen(ctx, func(err error) {
		if log := d.drains.log; err != nil && log != nil {
			log.Error("cannot watch kube-ipvs0 for foreign changes", "err", err)
		}
		report()
	})
	if listenErr != nil {
		return tokens, listenErr
	}
	d.background.all.Go(run)
	return tokens, err
}

package apply

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Poll checks a system at an interval for changes by other programs, if it does not report them.
type Poll struct {
	commits atomic.Uint64      // incremented when a commit starts and when it ends
	cancel  context.CancelFunc // ends the goroutine; nil without one
	running sync.WaitGroup
}

// Committing records that a commit runs, until it calls done.
func (p *Poll) Committing() (done func()) {
	p.commits.Add(1)
	return func() { p.commits.Add(1) }
}

// Start calls check after each interval, until Close or the end of ctx, and sends a token if it returns
// true. What check reads may contain part of a commit, unless undisturbed then reports that none ran.
func (p *Poll) Start(ctx context.Context, tick func(time.Duration) <-chan time.Time, every time.Duration, check func(undisturbed func() bool) bool) <-chan struct{} {
	ctx, p.cancel = context.WithCancel(ctx)
	tokens := make(chan struct{}, 1)
	p.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick(every):
			}
			began := p.commits.Load()
			if check(func() bool { return began%2 == 0 && began == p.commits.Load() }) {
				Wake(tokens)
			}
		}
	})
	return tokens
}

// Close ends the goroutine of Start.
func (p *Poll) Close() error {
	if p.cancel != nil {
		p.cancel()
	}
	p.running.Wait()
	return nil
}

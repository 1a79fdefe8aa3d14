package reconcile

import (
	"context"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// reading is a reading of the kernel that runs concurrently with Changes, in a mode in which it takes
// long. Its result is used if nothing was committed meanwhile.
type reading struct {
	began           time.Time
	doubts, commits uint64 // when it began
	use             func() // makes it the last Read of the Dataplane
	err             error
}

// maxDropped is the number of readings without use after which Changes wait for the next one.
const maxDropped = 3

// startReading starts a reading, unless a Replace follows, which reads the kernel.
func (r *Reconciler) startReading(ctx context.Context, read func(context.Context) (use func(), err error)) {
	if !r.state.Known {
		return
	}
	c, running := &reading{began: r.Now(), doubts: r.state.Doubts, commits: r.commits}, make(chan *reading, 1)
	r.running = running
	go func() {
		c.use, c.err = read(ctx)
		running <- c
	}()
}

// finish uses or drops the reading that has ended.
func (r *Reconciler) finish(ctx context.Context, c *reading) {
	r.running = nil
	if !r.state.Known || r.commits != c.commits {
		r.dropped++
		return
	}
	r.perform(ctx, &Sync{Began: c.began}, true, c.doubts, func(context.Context, ir.Programs) error {
		if c.err == nil {
			c.use()
		}
		return c.err
	})
}

// failComparison records that the kernel could not be read. What it contains is still known.
func (r *Reconciler) failComparison(ctx context.Context, s *Sync, err error) {
	failed := &Sync{Kind: Full, Began: s.Began, Ended: r.Now(), Err: err}
	r.state.Err = err
	r.state.doubt(failed.Ended)
	r.next.comparing.fail(&r.Schedule, failed.Ended)
	r.end(ctx, failed)
}

package reconcile

import (
	"context"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// reading is a reading of the kernel that runs concurrently with Changes, in a mode in which it takes
// long. A sync ends it: its result would be useless, and the tools of iptables begin again after each
// commit.
type reading struct {
	began  time.Time
	doubts uint64 // when it began
	cancel func()
	ended  bool   // by a sync
	use    func() // makes it the last Read of the Dataplane
	err    error
}

// maxDropped is the number of readings that syncs ended after which Changes wait for the next one.
const maxDropped = 3

// startReading starts a reading, unless a Replace follows, which reads the kernel.
func (r *Reconciler) startReading(ctx context.Context, read func(context.Context) (use func(), err error)) {
	if !r.state.Known {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	c, running := &reading{began: r.Now(), doubts: r.state.Doubts, cancel: cancel}, make(chan *reading, 1)
	r.reading, r.running = c, running
	go func() {
		c.use, c.err = read(ctx)
		running <- c
	}()
}

// finish makes the next sync use the reading, unless a sync ended it.
func (r *Reconciler) finish(c *reading) {
	r.running = nil
	if c.cancel(); c.ended {
		r.dropped++
		return
	}
	r.read = c
}

// take makes the reading the last Read of the Dataplane.
func (c *reading) take(context.Context, ir.Programs) error {
	if c.err == nil {
		c.use()
	}
	return c.err
}

// failComparison records that the kernel could not be read. What it contains is still known.
func (r *Reconciler) failComparison(ctx context.Context, s *Sync, err error) {
	failed := &Sync{Kind: Full, Began: s.Began, Ended: r.Now(), Err: err}
	r.state.Err = err
	r.state.doubt(failed.Ended)
	r.next.comparing.fail(&r.Schedule, failed.Ended)
	r.end(ctx, failed)
}

package daemon

import (
	"context"
	"time"

	"github.com/proxyc/proxyc/apply"
)

// easeEvery is how often leftovers that connections need are looked at.
const easeEvery = 5 * time.Second

// easing removes what an earlier mode left when its connections have ended, or had
// time enough.
type easing struct {
	deadline time.Duration
	now      func() time.Time

	left  []apply.Leftover
	began time.Time
}

// begin takes on leftovers of which connections need some.
func (e *easing) begin(left []apply.Leftover) {
	if len(e.left) == 0 {
		e.began = e.now()
	}
	e.left = left
}

// step looks once. over is how many connections were cut off, since their time
// was up.
func (e *easing) step(ctx context.Context) (over int, err error) {
	kept, err := ease(ctx, e.left)
	if len(kept) > 0 && e.now().Sub(e.began) >= e.deadline {
		for _, k := range kept {
			over = max(over, k.Connections)
		}
		kept, err = nil, remove(ctx, e.left)
	}
	if err == nil && len(kept) == 0 {
		e.left = nil
	}
	return over, err
}

// easeUntil eases what comes from begin until ctx ends.
func (d *daemon) easeUntil(ctx context.Context, e *easing, begin <-chan []apply.Leftover) {
	ticker := time.NewTicker(easeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case left := <-begin:
			e.begin(left)
			continue
		case <-ticker.C:
		}
		if len(e.left) == 0 {
			continue
		}
		over, err := e.step(ctx)
		d.retrying("what connections of another mode kept", err)
		switch {
		case over > 0:
			d.log.Warn("connections of another mode have lasted for as long as they may: they end", "connections", over)
		case len(e.left) == 0:
			d.log.Info("connections of another mode have ended, and what they needed is gone")
		}
	}
}

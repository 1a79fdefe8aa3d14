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
	kept  []Busy // of left, when connections were asked for last
	began time.Time
}

// eased is leftovers of which connections need some.
type eased struct {
	left []apply.Leftover
	kept []Busy
}

// begin takes on leftovers.
func (e *easing) begin(of eased) {
	if len(e.left) == 0 {
		e.began = e.now()
	}
	e.left, e.kept = of.left, of.kept
}

// told returns what there is to tell of it; nil where nothing is left.
func (e *easing) told() *Easing {
	if len(e.left) == 0 {
		return nil
	}
	return &Easing{Since: e.began, Until: e.began.Add(e.deadline), Kept: e.kept}
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
	if err == nil {
		if e.kept = kept; len(kept) == 0 {
			e.left = nil
		}
	}
	return over, err
}

// easeUntil eases what comes from begin until ctx ends.
func (d *daemon) easeUntil(ctx context.Context, e *easing, begin <-chan eased) {
	ticker := time.NewTicker(easeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case of := <-begin:
			e.begin(of)
			d.state.setEasing(e.told())
			continue
		case <-ticker.C:
		}
		if len(e.left) == 0 {
			continue
		}
		over, err := e.step(ctx)
		d.state.setEasing(e.told())
		d.retrying("what connections of another mode kept", err)
		switch {
		case over > 0:
			d.log.Warn("connections of another mode have lasted for as long as they may: they end", "connections", over)
		case len(e.left) == 0:
			d.log.Info("connections of another mode have ended, and what they needed is gone")
		}
	}
}

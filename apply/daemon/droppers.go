package daemon

import (
	"context"
	"time"
)

const (
	// droppersEvery is how long what others may drop is taken for known: to look
	// reads the tables of others, and runs tools, and whoever is on the node may ask.
	droppersEvery = 2 * time.Second
	// droppersTime is how long a look may take.
	droppersTime = 10 * time.Second
)

// droppers are rules of others that may drop what ours would let pass.
type droppers struct {
	look func(context.Context) ([]string, error)
	now  func() time.Time

	looking chan struct{} // full while somebody looks, to whom what follows belongs
	at      time.Time     // of the last look
	found   []string
	err     error
}

func newDroppers(look func(context.Context) ([]string, error), now func() time.Time) *droppers {
	return &droppers{look: look, now: now, looking: make(chan struct{}, 1)}
}

// get returns what the last look found, if that was not long ago. One look is
// under way at a time, and it ends also where who asked for it has gone; who
// waits for another's look may go.
func (d *droppers) get(ctx context.Context) ([]string, error) {
	select {
	case d.looking <- struct{}{}:
		defer func() { <-d.looking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if d.at.IsZero() || d.now().Sub(d.at) >= droppersEvery {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), droppersTime)
		defer cancel()
		d.found, d.err = d.look(ctx)
		d.at = d.now()
	}
	return d.found, d.err
}

package reconcile

import (
	"context"
	"time"
)

// Tidy is work that can wait until the rules are applied. It runs concurrently with syncs.
type Tidy struct {
	// Do is called after the first successful sync. If it returns an error, it is called again after
	// increasing waits. nil means that there is nothing to do.
	Do func(context.Context) error
	// Again requests another call of Do. The received function is called with its error.
	Again <-chan func(error)

	called   bool
	running  chan error // receives the result of the running call; nil if none is running
	failures int
	next     <-chan time.Time // fires when Do is due again; nil if it is not
}

// first calls Do if it was not called yet.
func (t *Tidy) first(ctx context.Context) {
	if t.Do != nil && !t.called {
		t.start(ctx, nil)
	}
}

// start calls Do, and then done, if set, with its error.
func (t *Tidy) start(ctx context.Context, done func(error)) {
	t.called, t.next = true, nil
	running := make(chan error, 1)
	t.running = running
	go func() {
		err := t.Do(ctx)
		if done != nil {
			done(err)
		}
		running <- err
	}()
}

// requests returns Again unless Do is running.
func (t *Tidy) requests() <-chan func(error) {
	if t.running != nil {
		return nil
	}
	return t.Again
}

// finish records the result of a call.
func (t *Tidy) finish(r *Reconciler, err error) {
	t.running = nil
	if err == nil {
		t.failures = 0
		return
	}
	t.failures++
	t.next = r.After(r.Schedule.backoff(t.failures))
}

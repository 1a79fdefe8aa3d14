package reconcile

import (
	"context"
	"time"
)

// Tidy does what can wait until the rules are in force, beside the syncs.
type Tidy struct {
	// Do is called once after the first sync that succeeds, and again, later each time, as
	// long as it returns an error; nil: there is nothing to do.
	Do func(context.Context) error
	// Again has a function when Do is to be called again; the function gets the error of
	// that call.
	Again <-chan func(error)

	called   bool
	running  chan error // gets the result of the call under way; nil: none is
	failures int
	next     <-chan time.Time // when Do is called again; nil: it is not
}

// first calls Do if nothing has called it yet.
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

// requests returns Again while Do can be called.
func (t *Tidy) requests() <-chan func(error) {
	if t.running != nil {
		return nil
	}
	return t.Again
}

// finish enters the result of a call.
func (t *Tidy) finish(r *Reconciler, err error) {
	t.running = nil
	if err == nil {
		t.failures = 0
		return
	}
	t.failures++
	t.next = r.After(r.Schedule.backoff(t.failures))
}

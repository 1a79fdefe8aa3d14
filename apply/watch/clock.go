package watch

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// endingClock is the time for a Reflector, which waits between its tries whatever ends
// meanwhile, up to 30 s: what waits for a time after ctx ended has come to its end.
type endingClock struct {
	clock.RealClock
	ctx context.Context
}

// After returns a channel that has the time after d, or when ctx ends.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case now := <-timer.C:
			at <- now
		case <-c.ctx.Done():
			at <- time.Now()
		}
	}()
	return at
}

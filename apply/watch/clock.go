package watch

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// contextClock is a Reflector's clock whose waits end with ctx. A Reflector otherwise finishes its
// backoff of up to 30 s after ctx has ended.
type contextClock struct {
	clock.RealClock
	ctx context.Context
}

// After returns a channel that receives the time after d, or when ctx ends.
func (c contextClock) After(d time.Duration) <-chan time.Time {
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

package apply

import "time"

// FirstRetry is the minimum wait before failed work is retried.
const FirstRetry = time.Second

// Backoff returns the wait after a number of consecutive failures: first, then twice as long each
// time, up to longest.
func Backoff(failures int, first, longest time.Duration) time.Duration {
	wait := first
	for i := 1; i < failures && wait < longest; i++ {
		wait *= 2
	}
	return min(wait, longest)
}

package apply

import "time"

// FirstRetry is the least time after which something that failed is tried again
// by itself.
const FirstRetry = time.Second

// Backoff returns how long to wait after so many failures in a row: first, then
// twice as long each time, up to longest.
func Backoff(failures int, first, longest time.Duration) time.Duration {
	wait := first
	for i := 1; i < failures && wait < longest; i++ {
		wait *= 2
	}
	return min(wait, longest)
}

package applytest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// ScaledTimeout scales a timeout that is sufficient on a fast machine. The environment variable
// PROXYC_SLOW is the factor for a slow one.
func ScaledTimeout(d time.Duration) time.Duration { return time.Duration(slowness() * float64(d)) }

func slowness() float64 {
	factor, err := strconv.ParseFloat(os.Getenv("PROXYC_SLOW"), 64)
	if err != nil || factor <= 0 {
		return 1
	}
	return factor
}

// ReplyTimeout is the timeout of a try that has a reply. A late reply on a busy machine is no
// failure.
const ReplyTimeout = 20 * time.Second

// StopTimeout is how long a daemon may take to end. It interrupts its work after less than a
// second, but a busy machine runs it late.
const StopTimeout = 5 * time.Second

// Until waits until a condition holds, and fails the test after a time, which is at least half a
// minute, since machines are busy.
func Until(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	limit = ScaledTimeout(max(limit, 30*time.Second))
	if !Within(limit, holds) {
		t.Fatalf("%s: not within %s", what, limit)
	}
}

// Within waits until a condition holds, and reports whether it did within a time. The pauses
// between tries become longer: many tries run programs.
func Within(limit time.Duration, holds func() bool) bool {
	deadline := time.After(limit)
	for pause := time.Millisecond; !holds(); pause = min(pause*3/2, 500*time.Millisecond) {
		select {
		case <-deadline:
			return false
		case <-time.After(pause):
		}
	}
	return true
}

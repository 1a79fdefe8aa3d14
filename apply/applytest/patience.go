package applytest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Patience is how long packets and programs may take that are given d on a fast
// machine. The environment variable PROXYC_SLOW is the factor for a slow one.
func Patience(d time.Duration) time.Duration { return time.Duration(slowness() * float64(d)) }

// Fewer is how many of n repetitions a test makes: one in eight with -short, and so few
// on a slow machine that it takes no longer than its patience.
func Fewer(n int) int {
	if testing.Short() {
		n /= 8
	}
	return max(1, int(float64(n)/slowness()))
}

// Long skips what make test leaves to make test-all: more cases of what others test as well.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
}

func slowness() float64 {
	factor, err := strconv.ParseFloat(os.Getenv("PROXYC_SLOW"), 64)
	if err != nil || factor <= 0 {
		return 1
	}
	return factor
}

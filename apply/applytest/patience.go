package applytest

import (
	"os"
	"strconv"
	"time"
)

// Patience is how long packets and programs may take that are given d on a fast
// machine. The environment variable PROXYC_SLOW is the factor for a slow one.
func Patience(d time.Duration) time.Duration { return time.Duration(slowness() * float64(d)) }

// fewer is how many of n repetitions a test makes, so that a slow machine takes no
// longer than its patience.
func fewer(n int) int { return max(1, int(float64(n)/slowness())) }

func slowness() float64 {
	factor, err := strconv.ParseFloat(os.Getenv("PROXYC_SLOW"), 64)
	if err != nil || factor <= 0 {
		return 1
	}
	return factor
}

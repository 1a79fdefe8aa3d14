package applytest

import (
	"os"
	"strconv"
	"time"
)

// Patience is how long packets and programs may take that are given d on a fast
// machine. The environment variable PROXYC_SLOW is the factor for a slow one.
func Patience(d time.Duration) time.Duration { return time.Duration(slowness() * float64(d)) }

func slowness() float64 {
	factor, err := strconv.ParseFloat(os.Getenv("PROXYC_SLOW"), 64)
	if err != nil || factor <= 0 {
		return 1
	}
	return factor
}

// Surely is how long a try waits that has an answer: one that is late on a busy machine is
// no failure.
const Surely = 20 * time.Second

// Promptly is how long a daemon may take to end. It cuts its work off after less than a second,
// but a busy machine runs it late.
const Promptly = 5 * time.Second

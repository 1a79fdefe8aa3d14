package applytest

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "seed of tests with random input; 0 for a random one")

// Seed returns the seed of a test with random input: random, and logged, or the value of -seed to
// reproduce a failure.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return seed
}

package applytest

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "where tests with random input begin; 0 picks another place each time")

// Seed is where a test with random input begins: by chance, and told in the log of
// the test, or where -seed says, so that what failed can be seen again.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return seed
}

package applytest

import (
	"flag"
	"testing"
)

// With -seed a test uses that seed; otherwise each run uses another one.
func TestSeed(t *testing.T) {
	given := flag.Lookup("seed").Value.String()
	defer flag.Set("seed", given)
	flag.Set("seed", "7")
	if got := Seed(t); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
	flag.Set("seed", "0")
	if a, b := Seed(t), Seed(t); a == b {
		t.Errorf("got %d twice", a)
	}
}

package applytest

import (
	"testing"
	"time"
)

func TestScaledTimeout(t *testing.T) {
	t.Setenv("PROXYC_SHARE", "")
	n := 30
	if testing.Short() {
		n *= 8
	}
	for factor, want := range map[string]time.Duration{"": time.Second, "0": time.Second, "4": 4 * time.Second, "1.5": 1500 * time.Millisecond} {
		t.Setenv("PROXYC_SLOW", factor)
		if got := ScaledTimeout(time.Second); got != want {
			t.Errorf("PROXYC_SLOW=%q: %s, want %s", factor, got, want)
		}
		if got := Fewer(n); got != int(30*time.Second/want) {
			t.Errorf("PROXYC_SLOW=%q: %d of %d", factor, got, n)
		}
	}
}

package applytest

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	for factor, want := range map[string]time.Duration{"": time.Second, "0": time.Second, "4": 4 * time.Second, "1.5": 1500 * time.Millisecond} {
		t.Setenv("PROXYC_SLOW", factor)
		if got := Patience(time.Second); got != want {
			t.Errorf("PROXYC_SLOW=%q: %s, want %s", factor, got, want)
		}
		if got := fewer(30); got != int(30*time.Second/want) {
			t.Errorf("PROXYC_SLOW=%q: %d of 30", factor, got)
		}
	}
}

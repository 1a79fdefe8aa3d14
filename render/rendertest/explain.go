// Package rendertest provides tests for all back ends.
package rendertest

import (
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/render"
)

// Explain checks that every entry of a lowered Program has an origin. The entries
// at the places of want must have the given "MATCH PORT ORIGIN".
func Explain(t *testing.T, x render.Rendered, want map[string]string) {
	t.Helper()
	entries := make(map[string]render.Entry)
	x.Explain(func(e render.Entry) {
		if e.Origin.Object == "" {
			t.Errorf("%s has no origin", e.Where)
		}
		entries[e.Where] = e
	})
	for where, want := range want {
		e := entries[where]
		if got := fmt.Sprint(e.Match, " ", e.Port, " ", e.Origin); got != want {
			t.Errorf("%s\n got %s\nwant %s", where, got, want)
		}
	}
}

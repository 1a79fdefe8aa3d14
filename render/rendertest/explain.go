// Package rendertest provides tests for all back ends.
package rendertest

import (
	"fmt"
	"testing"

	"github.com/proxyc/proxyc/render"
)

// Explain checks that every entry of a lowered Program has an origin. The entries
// at the places of want must have the given "MATCH PORT ORIGIN". A consumer may
// stop at any entry.
func Explain(t *testing.T, x render.Rendered, want map[string]string) {
	t.Helper()
	entries := make(map[string]render.Entry)
	n := 0
	x.Explain(func(e render.Entry) bool {
		if e.Origin.Object == "" {
			t.Errorf("%s has no origin", e.Where)
		}
		entries[e.Where] = e
		n++
		return true
	})
	for where, want := range want {
		e := entries[where]
		if got := fmt.Sprint(e.Match, " ", e.Port, " ", e.Origin); got != want {
			t.Errorf("%s\n got %s\nwant %s", where, got, want)
		}
	}
	for stop := range n {
		seen := 0
		x.Explain(func(render.Entry) bool { seen++; return seen <= stop })
		if seen != stop+1 {
			t.Fatalf("stopped after %d entries, saw %d", stop+1, seen)
		}
	}
}

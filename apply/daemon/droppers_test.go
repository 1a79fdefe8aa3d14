package daemon

import (
	"context"
	"sync"
	"testing"
	"time"
)

// However many ask for the status, and go before it comes, the tables of others
// are looked at now and then only.
func TestDroppers(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	looks := 0
	d := &droppers{now: func() time.Time { return now }, look: func(ctx context.Context) ([]string, error) {
		looks++
		return []string{"policy drop"}, ctx.Err()
	}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if found, err := d.get(gone); err != nil || len(found) != 1 {
				t.Error(found, err)
			}
		})
	}
	all.Wait()
	if looks != 1 {
		t.Errorf("looked %d times, want 1", looks)
	}
	now = now.Add(droppersEvery)
	if d.get(t.Context()); looks != 2 {
		t.Errorf("looked %d times after a while, want 2", looks)
	}
}

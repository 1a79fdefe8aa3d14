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
	looking, answer := make(chan struct{}), make(chan struct{})
	d := newDroppers(func(ctx context.Context) ([]string, error) {
		looks++
		looking <- struct{}{}
		<-answer
		return []string{"policy drop"}, ctx.Err()
	}, func() time.Time { return now })
	asking, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if found, err := d.get(asking); err != nil || len(found) != 1 {
			t.Error(found, err)
		}
	})
	<-looking
	cancel()
	for range 100 { // while that look is under way
		if found, err := d.get(asking); err == nil {
			t.Errorf("who is gone got %q", found)
		}
	}
	close(answer)
	all.Wait()
	if found, err := d.get(t.Context()); err != nil || len(found) != 1 || looks != 1 {
		t.Errorf("got %q, %v, after %d looks, want one", found, err, looks)
	}
	now = now.Add(droppersEvery)
	all.Go(func() { <-looking })
	if d.get(t.Context()); looks != 2 {
		t.Errorf("looked %d times after a while, want 2", looks)
	}
	all.Wait()
}

package apply

import (
	"context"
	"time"
)

// Wake puts a token into a channel for one, unless one is already pending.
func Wake(pending chan<- struct{}) {
	select {
	case pending <- struct{}{}:
	default:
	}
}

// Every calls do at an interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

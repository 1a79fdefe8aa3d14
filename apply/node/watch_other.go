//go:build !linux && !windows

package node

import "context"

// Watch waits for the end of ctx: addresses are not watched here.
func Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

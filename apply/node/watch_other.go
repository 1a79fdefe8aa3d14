//go:build !linux && !windows

package node

import "context"

// Watch waits until ctx ends. Addresses are not watched on this system.
func Watch(ctx context.Context, _ func(missed error)) error {
	<-ctx.Done()
	return nil
}

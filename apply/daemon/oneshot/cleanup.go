package oneshot

import (
	"context"
	"errors"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
)

// cleanupTimeout is how long Cleanup waits for another proxyc to end.
const cleanupTimeout = 5 * time.Second

// Cleanup removes what proxyc or kube-proxy left on the node, in every mode and family. With
// keepPeer it removes what proxyc left on a node that kube-proxy manages again. With readOnly it
// removes nothing. It calls found with the leftovers before it removes them, and with the objects
// that it keeps, and for whom.
func Cleanup(ctx context.Context, keepPeer, readOnly bool, found func(leftovers []apply.Leftover, kept []string)) error {
	var lock *apply.Lock
	if !readOnly {
		var err error
		if lock, err = acquireLock(ctx, cleanupTimeout, func(error) {}); err != nil {
			return err
		}
		defer lock.Release()
	}
	leftovers, err := host.Leftovers(ctx, "", nil, readOnly)
	kept, keptErr := host.Kept(ctx)
	err = errors.Join(err, keptErr)
	if keepPeer {
		if err == nil {
			for _, peer := range host.OfKubeProxy(leftovers) {
				kept = append(kept, peer+": kube-proxy uses it")
			}
			leftovers, err = host.OwnLeftovers(ctx, len(host.OfKubeProxy(leftovers)) > 0, readOnly)
		}
		if err != nil {
			return err
		}
	}
	if err == nil || len(leftovers) > 0 {
		found(leftovers, kept)
	}
	if readOnly {
		return err
	}
	if err = errors.Join(err, host.Remove(ctx, leftovers)); err != nil {
		return err
	}
	return lock.RemoveNote()
}

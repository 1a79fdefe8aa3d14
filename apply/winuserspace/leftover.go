package winuserspace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/apply"
)

// Leftovers returns the addresses that proxyc added to the service interface of a node. Those of
// kube-proxy cannot be distinguished from others.
func Leftovers(host Host, file string) ([]apply.Leftover, error) {
	noted, err := addressFile(file).read()
	if err != nil || len(noted) == 0 {
		return nil, err
	}
	addrs, err := host.Addresses()
	if err != nil {
		return nil, err
	}
	s := newState(addrs, noted)
	ours := slices.DeleteFunc(slices.SortedFunc(maps.Keys(noted), netip.Addr.Compare), func(a netip.Addr) bool { return !s.ours(a) })
	if len(ours) == 0 {
		return nil, nil
	}
	return []apply.Leftover{{
		Object: fmt.Sprintf("%d addresses of Services on the service interface", len(ours)),
		Remove: func(ctx context.Context) error {
			for _, a := range ours {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := host.Remove(a); err != nil {
					return fmt.Errorf("address %s: %w", a, err)
				}
			}
			return addressFile(file).write(nil)
		},
	}}, nil
}

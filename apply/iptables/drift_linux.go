package iptables

import (
	"context"

	"github.com/proxyc/proxyc/apply/monitor"
)

// ChangedBy returns who changed our chains since it was called last; nothing in the
// legacy variant, of which the kernel tells nothing.
func (d *Dataplane) ChangedBy() []string { return d.monitor.ChangedBy() }

// Drift listens to what the kernel tells of others' transactions, or, in the
// legacy variant, looks at the tables.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	return d.monitor.Start(ctx, d.log, func(notify func(bool)) (monitor.Monitor, error) {
		if d.Variant == Legacy {
			return monitor.OpenLegacy(notify), nil
		}
		return monitor.OpenNFT(monitor.IPTables, notify)
	})
}

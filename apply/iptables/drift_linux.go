package iptables

import (
	"context"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
)

var _ apply.Attributor = (*Dataplane)(nil)

// ChangedBy returns the programs that changed our chains since the last call. It returns nothing in
// the legacy variant, for which the kernel sends no notifications.
func (d *Dataplane) ChangedBy() []string { return d.monitor.ChangedBy() }

// Drift monitors foreign transactions by notifications, or the tables by polling in the legacy
// variant.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	return d.monitor.Start(ctx, d.log, func(notify func(missed error)) (monitor.Monitor, error) {
		if d.Variant == Legacy {
			return monitor.OpenLegacy(notify), nil
		}
		return monitor.OpenNFT(monitor.IPTables, notify)
	})
}

//go:build !linux

package iptables

import (
	"context"
	"errors"
)

// Drift is not supported: only Linux has iptables.
func (d *Dataplane) Drift(context.Context) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

package hns

import (
	"context"

	"github.com/proxyc/proxyc/apply"
)

// Open opens the Dataplane of this machine.
func Open(_ context.Context, o apply.Options) (*Dataplane, error) {
	return New(Local(), Options{Network: o.Network, RootEndpoint: o.RootEndpoint, HostMACs: Interfaces, Local: o.Local, Log: o.Log})
}

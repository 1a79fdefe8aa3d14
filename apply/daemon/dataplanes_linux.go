package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/ipvs"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

var errNotLinux error

// dataplanes are those of all modes, in the order in which leftovers go.
var dataplanes = [...]dataplane{
	{
		ir.ModeNFTables, "", 0,
		func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return nftables.Open(ctx, o) },
		func(ctx context.Context) ([]apply.Leftover, error) { return nftables.Leftovers(ctx, false) },
	},
	{
		ir.ModeIPTables, "", 0,
		func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return iptables.Open(ctx, o) },
		func(ctx context.Context) ([]apply.Leftover, error) { return iptables.Leftovers(ctx, nil) },
	},
	{
		// The kernel tells nothing of virtual servers and sets.
		ir.ModeIPVS, ir.ModeIPTables, time.Minute,
		func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return ipvs.Open(ctx, o) },
		ipvs.Leftovers,
	},
}

// mayDrop returns the base chains of others that see packets before ours and may
// drop some, and the built-in ones of the older iptables, where it has tables.
func mayDrop(ctx context.Context) ([]string, error) {
	tables, err := nftables.MayDrop(ctx)
	chains, chainsErr := iptables.MayDrop(ctx)
	return append(tables, chains...), errors.Join(err, chainsErr)
}

// beside returns what proxyc left on a node to which kube-proxy is back.
func beside(ctx context.Context) ([]apply.Leftover, error) {
	tables, err := nftables.Leftovers(ctx, false)
	chains, chainsErr := iptables.BesideKubeProxy(ctx)
	ours := slices.DeleteFunc(append(tables, chains...), func(l apply.Leftover) bool { return l.Peer })
	return ours, errors.Join(err, chainsErr)
}

// lockDir holds the lock files of the node's network namespaces. It is root's
// alone; a pod has to have the node's.
const lockDir = "/run/proxyc"

// HostFacts adds nothing: the kernel knows no more of a node than its interfaces.
func HostFacts(*config.Config, *compiler.Facts) error { return nil }

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
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

var errNotLinux error

// dataplanes are those of all modes, in the order in which leftovers go.
var dataplanes = [...]dataplane{
	{
		mode: ir.ModeNFTables, apart: true,
		open:      func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return nftables.Open(ctx, o) },
		leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return nftables.Leftovers(ctx, false) },
	},
	{
		mode:      ir.ModeIPTables,
		open:      func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return iptables.Open(ctx, o) },
		leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return iptables.Leftovers(ctx, nil) },
	},
	{
		// The kernel tells nothing of virtual servers and sets.
		mode: ir.ModeIPVS, within: ir.ModeIPTables, compareEvery: time.Minute,
		open:      func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return ipvs.Open(ctx, o) },
		leftovers: ipvs.Leftovers,
		events: []watch.Event{startEvent("IPVSDeprecation",
			"The ipvs proxier is now deprecated and may be removed in a future release. Please use 'nftables' instead.")},
	},
	{
		mode: ir.ModeUserspace, within: ir.ModeIPTables,
		open: func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return userspace.Open(ctx, o) },
	},
}

// Interference returns what the rules of others do to packets to Services, those of
// the older iptables included, where it has tables. mark asks for masquerade.
func Interference(ctx context.Context, mark uint32) (apply.Interference, error) {
	all, err := nftables.Interference(ctx, mark)
	chains, chainsErr := iptables.Interference(ctx, mark)
	all.Drops, all.Diverts = append(all.Drops, chains.Drops...), append(all.Diverts, chains.Diverts...)
	return all, errors.Join(err, chainsErr)
}

// Held returns how many rules each variant of iptables holds.
func Held(ctx context.Context) (map[string]int, error) {
	held, err := iptables.Held(ctx)
	out := map[string]int{}
	for v, n := range held {
		out[string(v)] = n
	}
	return out, err
}

// FastpathBridges returns the bridges that take the fast path of mode nftables.
func FastpathBridges() ([]string, error) { return flowtable.Bridges() }

// beside returns what proxyc left on a node to which kube-proxy is back, which
// its own rules tell where known. In mode ipvs it makes nothing that proxyc does
// not make in that mode: what is there serves, whoever made it, and has the chains
// that mode iptables would leave.
func beside(ctx context.Context, known bool) ([]apply.Leftover, error) {
	tables, err := nftables.Leftovers(ctx, false)
	if !known {
		servers, serversErr := ipvs.Leftovers(ctx)
		servers = slices.DeleteFunc(servers, func(l apply.Leftover) bool { return l.Eased }) // by us
		if err == nil && serversErr == nil && len(servers) == 0 {
			err = errNoPeer
		}
		return tables, errors.Join(err, serversErr)
	}
	chains, chainsErr := iptables.BesideKubeProxy(ctx)
	ours := slices.DeleteFunc(append(tables, chains...), func(l apply.Leftover) bool { return l.KubeProxy })
	return ours, errors.Join(err, chainsErr)
}

// lockDir holds the lock files of the node's network namespaces. It is root's
// alone; a pod has to have the node's.
const lockDir = "/run/proxyc"

// Interfaces returns the network interfaces by name.
func Interfaces() ([]compiler.Interface, error) { return node.Interfaces() }

// HostFacts adds nothing: the kernel knows no more of a node than its interfaces.
func HostFacts(*config.Config, *compiler.Facts) error { return nil }

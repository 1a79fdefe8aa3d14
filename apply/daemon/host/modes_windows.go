package host

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/winuserspace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

var errNotLinux error

// modes contains all modes, in the order of removing their leftovers.
var modes = [...]Mode{
	{
		mode: ir.ModeKernelspace,
		open: func(ctx context.Context, o apply.Options) (apply.Dataplane, error) { return hns.Open(ctx, o) },
		leftovers: func(ctx context.Context, _ bool) ([]apply.Leftover, error) {
			network := os.Getenv("KUBE_NETWORK")
			if network == "" {
				return nil, fmt.Errorf("mode %s: %w: KUBE_NETWORK must contain the name of the cluster's HNS network, and is not set", ir.ModeKernelspace, errNotConfigured)
			}
			return hns.Leftovers(ctx, hns.Local(), hns.Options{Network: network, HostMACs: hns.Interfaces})
		},
	},
	{
		mode: ir.ModeUserspace,
		open: func(_ context.Context, o apply.Options) (apply.Dataplane, error) {
			return winuserspace.Open(addressFile(), o), nil
		},
		leftovers: func(context.Context, bool) ([]apply.Leftover, error) {
			return winuserspace.Leftovers(winuserspace.Local(), addressFile())
		},
	},
}

// lockDir contains the node's lock file.
var lockDir = DataDir()

// DataDir returns the directory for proxyc's data about the machine.
func DataDir() string {
	return filepath.Join(cmp.Or(os.Getenv("ProgramData"), `C:\ProgramData`), "proxyc")
}

// addressFile returns the path of the list of addresses that mode userspace added.
func addressFile() string { return filepath.Join(DataDir(), "addresses.json") }

// Interfaces returns the network interfaces, ordered by name. It excludes the addresses of Services
// that mode userspace added, since they are not the node's own.
func Interfaces() ([]compiler.Interface, error) {
	all, err := node.Interfaces()
	if err != nil {
		return nil, err
	}
	added, err := winuserspace.ReadAddresses(addressFile())
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Addrs = slices.DeleteFunc(all[i].Addrs, func(p netip.Prefix) bool { return added[p.Addr()] })
	}
	return slices.DeleteFunc(all, func(i compiler.Interface) bool { return len(i.Addrs) == 0 }), nil
}

// Interference returns nothing: no program filters packets before HNS.
func Interference(context.Context, uint32, ir.Programs) (apply.Interference, error) {
	return apply.Interference{}, nil
}

// Kept returns nothing: no other program uses the objects of proxyc.
func Kept(context.Context) ([]string, error) { return nil, nil }

// OwnLeftovers returns nothing: kube-proxy adopts the objects of proxyc.
func OwnLeftovers(context.Context, bool, bool) ([]apply.Leftover, error) { return nil, nil }

// Facts adds facts from HNS: the type of the network, and the endpoints of this node.
func Facts(cfg *config.Config, facts *compiler.Facts) error {
	if cfg.ProxyMode() != ir.ModeKernelspace {
		return nil
	}
	host := hns.Local()
	n, err := host.Network(cfg.Winkernel.NetworkName)
	if err != nil {
		return err
	}
	if n.Overlay() {
		facts.HNSNetworkType = "Overlay"
	}
	g, err := host.Summarize()
	if err != nil {
		return err
	}
	facts.HNSEndpoints = map[netip.Addr]struct{}{}
	for _, e := range g.Endpoints {
		if !e.Remote && e.Network == n.ID {
			for _, a := range e.Addrs {
				facts.HNSEndpoints[a] = struct{}{}
			}
		}
	}
	return nil
}

// RuleCounts returns nothing: only Linux has iptables.
func RuleCounts(context.Context) (map[string]int, error) { return nil, nil }

// FastpathBridges returns nothing: only Linux has the fast path.
func FastpathBridges() ([]string, error) { return nil, nil }

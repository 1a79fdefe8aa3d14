package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/apply/ipvs"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/ir"
	iptablesrules "github.com/proxyc/proxyc/render/iptables"
	nftablesrules "github.com/proxyc/proxyc/render/nftables"
)

// lockDir holds the lock files of the node's network namespaces. It is root's
// alone; a pod has to have the node's.
const lockDir = "/run/proxyc"

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s: needs root, to read and write the node's rules", verb)
	}
	return nil
}

// dataplane is a Target whose kind of state is known to it alone.
type dataplane struct {
	once func(ctx context.Context, approve func(apply.Plan) bool) (apply.Plan, error)
	// leftovers are what proxies of other modes left, and kube-proxy beside the
	// rules that the mode's own plan takes over.
	leftovers func(ctx context.Context) ([]apply.Leftover, error)
	close     func() error
}

// openDataplane gives the dataplane of the programs' mode.
func openDataplane(ctx context.Context, programs ir.Programs, variant string, wait time.Duration) (*dataplane, error) {
	switch mode := programs.IPv4.Node.Mode; mode {
	case ir.ModeNFTables:
		t, err := nftables.Open()
		if err != nil {
			return nil, err
		}
		want := renderers[mode].Lower(programs).(nftablesrules.Tables)
		return &dataplane{
			once: func(ctx context.Context, approve func(apply.Plan) bool) (apply.Plan, error) {
				return apply.Once(ctx, t, want, approve)
			},
			leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return leftoversBut(ctx, mode, nil) },
			close:     t.Close,
		}, nil
	case ir.ModeIPTables:
		o := iptables.Options{Wait: wait}
		if variant != "auto" {
			o.Variant = iptables.Variant(variant)
		}
		t, err := iptables.Open(ctx, o)
		if err != nil {
			return nil, err
		}
		want := renderers[mode].Lower(programs).(iptablesrules.Rulesets)
		return &dataplane{
			once: func(ctx context.Context, approve func(apply.Plan) bool) (apply.Plan, error) {
				return apply.Once(ctx, t, want, approve)
			},
			leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return leftoversBut(ctx, mode, t) },
			close:     func() error { return nil },
		}, nil
	default:
		return nil, fmt.Errorf("mode: apply writes modes iptables and nftables, got %q; compile -o shows what %s would need", mode, mode)
	}
}

// leftoversBut are all leftovers but the rules that the plan of the mode in use covers.
func leftoversBut(ctx context.Context, mode ir.Mode, inUse *iptables.Target) ([]apply.Leftover, error) {
	var all []apply.Leftover
	var errs []error
	collect := func(l []apply.Leftover, err error) {
		all = append(all, l...)
		errs = append(errs, err)
	}
	collect(nftables.Leftovers(ctx, mode == ir.ModeNFTables))
	collect(iptables.Leftovers(ctx, inUse))
	collect(ipvs.Leftovers(ctx))
	return all, errors.Join(errs...)
}

func allLeftovers(ctx context.Context) ([]apply.Leftover, error) { return leftoversBut(ctx, "", nil) }

// leftoversBeside are what proxyc left on a node to which kube-proxy is back.
func leftoversBeside(ctx context.Context) ([]apply.Leftover, error) {
	tables, err := nftables.Leftovers(ctx, false)
	chains, chainsErr := iptables.Beside(ctx)
	ours := slices.DeleteFunc(append(tables, chains...), func(l apply.Leftover) bool { return l.Peer })
	return ours, errors.Join(err, chainsErr)
}

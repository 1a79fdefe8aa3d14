package main

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	kerneliptables "github.com/proxyc/proxyc/apply/iptables"
	kernelnftables "github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/nftables"
)

// kernel takes what this node's kernel holds of the mode of the Programs.
func (d *described) kernel(ctx context.Context, programs ir.Programs, variant string) error {
	var mode ir.Mode
	for _, p := range ir.Present(programs) {
		mode = p.Node.Mode
	}
	switch mode {
	case ir.ModeNFTables:
		dataplane, err := kernelnftables.Open(ctx, apply.Options{})
		if err != nil {
			return err
		}
		defer dataplane.Close()
		tables, err := dataplane.Tables(ctx)
		if err != nil {
			return err
		}
		for f, p := range ir.Present(programs) {
			if r := tables.Of(f); r != nil {
				d.set(f, nftables.NewEvaluator(r, ownOf(p)))
			}
		}
	case ir.ModeIPTables:
		dataplane, err := kerneliptables.Open(ctx, apply.Options{IPTables: variant})
		if err != nil {
			return err
		}
		defer dataplane.Close()
		rulesets, err := dataplane.Rulesets(ctx)
		if err != nil {
			return err
		}
		for f, p := range ir.Present(programs) {
			if r := rulesets.Of(f); r != nil {
				d.set(f, iptables.NewEvaluator(r, ownOf(p)))
			}
		}
	default:
		return fmt.Errorf("kernel: the rules of mode %s cannot be asked", mode)
	}
	others, err := daemon.Interference(ctx)
	d.leftOut = others.Lines()
	return err
}

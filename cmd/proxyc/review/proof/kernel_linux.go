package proof

import (
	"context"
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	kerneliptables "github.com/proxyc/proxyc/apply/iptables"
	kernelipvs "github.com/proxyc/proxyc/apply/ipvs"
	kernelnftables "github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/rules"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// kernel reads the rules of the Programs' mode from this node's kernel.
func (d *Side) kernel(ctx context.Context, programs ir.Programs, variant string) error {
	var mode ir.Mode
	var mark uint32
	var left []string
	for _, p := range ir.Present(programs) {
		mode, mark = p.Node.Mode, p.Node.MasqueradeMark()
	}
	if err := rules.CheckMode(ctx, mode, variant); err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	switch of := review.Modes[mode]; {
	case of.Follow == nil:
		return fmt.Errorf("kernel: the rules of mode %s cannot be read", mode)
	case of.OwnTable:
		dataplane, err := kernelnftables.Open(ctx, apply.Options{ReadOnly: true})
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
				switch {
				case !r.Exists:
					d.notCompared = append(d.notCompared, "table "+rules.TableOf(f)+rules.Missing)
				case strings.Contains(r.Flags, "dormant"):
					d.notCompared = append(d.notCompared, "table "+rules.TableOf(f)+rules.Dormant)
				}
				d.table(rules.TableOf(f), r, sim.OwnOfNode(p))
			}
		}
		leftovers, err := host.Leftovers(ctx, mode, dataplane, true)
		if err != nil {
			return err
		}
		for _, l := range leftovers {
			if !l.Eased {
				left = append(left, "rules of kube-proxy or another mode, which packets may match: "+l.Object)
			}
		}
	default:
		dataplane, err := kerneliptables.Open(ctx, apply.Options{IPTables: variant, ReadOnly: true})
		if err != nil {
			return err
		}
		defer dataplane.Close()
		rulesets, err := dataplane.Rulesets(ctx)
		if err != nil {
			return err
		}
		for f, p := range ir.Present(programs) {
			r := rulesets.Of(f)
			switch {
			case r == nil:
			case p.Node.IPVS != nil:
				held, err := kernelipvs.ReadRuleset(ctx, f)
				if err != nil {
					return err
				}
				held.Rules = r
				d.servers(held, sim.OwnOfNode(p))
			default:
				d.chains(r, sim.OwnOfNode(p))
			}
		}
	}
	others, err := host.Interference(ctx, mark, programs)
	d.beside(others, left...)
	return err
}

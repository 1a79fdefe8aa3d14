package iptables

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// OwnLeftovers returns what proxyc left on a node that kube-proxy manages again. If kube-proxy's
// canary chain exists, these are the chains that kube-proxy does not create; otherwise everything.
func OwnLeftovers(ctx context.Context) ([]apply.Leftover, error) {
	return eachFamily(ctx, nil, func(t *Dataplane, f ir.Family) ([]apply.Leftover, error) {
		with, err := t.tablesWith(ctx, f, canary)
		switch {
		case err != nil:
			return nil, err
		case len(with) > 0:
			return t.ownLeftovers(ctx, f)
		}
		return t.leftovers(ctx, f, false)
	})
}

// ownLeftovers returns the chains of a family that only proxyc creates, on a node where kube-proxy
// maintains its own rules. kube-proxy would never remove them, and could not remove the chains of
// Services that they jump to.
func (d *Dataplane) ownLeftovers(ctx context.Context, f ir.Family) ([]apply.Leftover, error) {
	plan, err := d.planOwnRemoval(ctx, f)
	if err != nil {
		return nil, err
	}
	var chains []string
	for _, d := range plan.families.Of(f).tables {
		for _, c := range d.stale {
			chains = append(chains, d.name+" "+c.Name)
		}
	}
	if len(chains) == 0 {
		return nil, nil
	}
	return []apply.Leftover{{
		Object: d.describe(f, chains),
		Remove: func(ctx context.Context) error {
			plan, err := d.planOwnRemoval(ctx, f)
			if err != nil {
				return err
			}
			return d.allOrNothing(ctx, plan)
		},
	}}, nil
}

// planOwnRemoval plans the removal of the chains that only proxyc creates. It fails if other chains
// still jump to them, since kube-proxy has then not written its own yet.
func (d *Dataplane) planOwnRemoval(ctx context.Context, f ir.Family) (*Plan, error) {
	have, err := d.readFamily(ctx, f)
	if err != nil {
		return nil, err
	}
	kept := *have
	for _, table := range kept.Tables() {
		var chains []rules.Chain
		for _, c := range table.Chains {
			if rules.OnlyOurs(c.Name) {
				continue
			}
			for _, r := range c.Rules {
				if r.Target == rules.Jump && rules.OnlyOurs(r.Chain) {
					return nil, fmt.Errorf("%s %s: chain %s jumps to %s: kube-proxy has not written its rules yet",
						d.tool(f), table.Name, c.Name, r.Chain)
				}
			}
			chains = append(chains, c)
		}
		table.Chains = chains
	}
	return newPlan(rules.NewRulesets(have), rules.NewRulesets(&kept)), nil
}

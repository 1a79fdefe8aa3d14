package iptables

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/apply"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// OwnLeftovers returns what proxyc left on a node that kube-proxy manages again. If kube-proxy's
// canary chain exists, these are the chains that kube-proxy does not create; otherwise everything. With
// readOnly nothing changes.
func OwnLeftovers(ctx context.Context, readOnly bool) ([]apply.Leftover, error) {
	return eachFamily(ctx, nil, readOnly, func(c *cleaner) ([]apply.Leftover, error) {
		with, err := c.tablesWith(ctx, c.family, canary)
		switch {
		case err != nil:
			return nil, err
		case len(with) > 0:
			return c.ownLeftovers(ctx)
		}
		return c.leftovers(ctx, false)
	})
}

// ownLeftovers returns the chains of a family that only proxyc creates, on a node where kube-proxy
// maintains its own rules. kube-proxy would never remove them, and could not remove the chains of
// Services that they jump to.
func (c *cleaner) ownLeftovers(ctx context.Context) ([]apply.Leftover, error) {
	plan, err := c.planOwnRemoval(ctx)
	if err != nil {
		return nil, err
	}
	chains := plan.staleChains(c.family)
	if len(chains) == 0 {
		return nil, nil
	}
	return []apply.Leftover{{
		Object: c.describe(chains),
		Remove: func(ctx context.Context) error {
			plan, err := c.planOwnRemoval(ctx)
			if err != nil {
				return err
			}
			return c.allOrNothing(ctx, plan)
		},
	}}, nil
}

// planOwnRemoval plans the removal of the chains that only proxyc creates. It fails if other chains
// still jump to them, since kube-proxy has then not written its own yet.
func (c *cleaner) planOwnRemoval(ctx context.Context) (*Plan, error) {
	have, err := c.readFamily(ctx, c.family)
	if err != nil {
		return nil, err
	}
	kept := *have
	for _, table := range kept.Tables() {
		var chains []rules.Chain
		for _, ch := range table.Chains {
			if rules.OnlyOurs(ch.Name) {
				continue
			}
			for _, r := range ch.Rules {
				if r.Target == rules.Jump && rules.OnlyOurs(r.Chain) {
					return nil, fmt.Errorf("%s %s: chain %s jumps to %s: kube-proxy has not written its rules yet",
						c.tool(c.family), table.Name, ch.Name, r.Chain)
				}
			}
			chains = append(chains, ch)
		}
		table.Chains = chains
	}
	return newPlan(rules.NewRulesets(have), rules.NewRulesets(&kept)), nil
}

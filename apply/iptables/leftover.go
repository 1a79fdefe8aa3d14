package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// canary is the chain by which kube-proxy, in three tables, notices that
// somebody flushes them (IPT-33).
const canary = "KUBE-PROXY-CANARY"

// Leftovers lists what proxyc or kube-proxy, in any mode that uses iptables,
// left in each variant and family: all but what inUse, if it is not nil,
// keeps. Chains of the kubelet, KUBE-FIREWALL among them, are not listed.
// Tools and families that are not there can have left nothing.
func Leftovers(ctx context.Context, inUse *Target) ([]apply.Leftover, error) {
	var left []apply.Leftover
	for _, v := range [...]Variant{NFT, Legacy} {
		if inUse != nil && inUse.Variant == v {
			continue
		}
		t, err := Open(ctx, Options{Variant: v})
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			continue
		}
		for _, f := range t.families {
			l, err := t.leftover(ctx, f)
			if err != nil {
				return nil, err
			}
			left = append(left, l...)
		}
	}
	return left, nil
}

// leftover gives what a family has, in one piece: it goes at once.
func (t *Target) leftover(ctx context.Context, f ir.Family) ([]apply.Leftover, error) {
	chains, err := t.remains(ctx, f)
	if err != nil || len(chains) == 0 {
		return nil, err
	}
	object := rules.Tool(f) + "-" + string(t.Variant) + " " + chains[0]
	if more := len(chains) - 1; more > 0 {
		object += fmt.Sprintf(" and %d more chains", more)
	}
	return []apply.Leftover{{Object: object, Remove: func(ctx context.Context) error { return t.clean(ctx, f) }}}, nil
}

// remains gives the chains that clean would remove, as "TABLE CHAIN".
func (t *Target) remains(ctx context.Context, f ir.Family) (chains []string, err error) {
	only := *t
	only.families = []ir.Family{f}
	sets, err := only.Read(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range newPlan(sets, rules.Rulesets{family(nil, f)}).families[0].tables {
		for _, c := range d.stale {
			chains = append(chains, d.name+" "+c.Name)
		}
	}
	tables, err := t.canaries(ctx, f)
	for _, table := range tables {
		chains = append(chains, table+" "+canary)
	}
	return chains, err
}

// canaries gives the tables that have one.
func (t *Target) canaries(ctx context.Context, f ir.Family) (tables []string, err error) {
	for _, table := range [...]string{"mangle", "nat", "filter"} {
		saved, err := t.save(ctx, f, table)
		if err != nil {
			return nil, err
		}
		if strings.Contains(saved, "\n:"+canary+" ") {
			tables = append(tables, table)
		}
	}
	return tables, nil
}

// clean removes all of our chains, and what jumps to them.
func (t *Target) clean(ctx context.Context, f ir.Family) error {
	only := *t
	only.families = []ir.Family{f}
	have, err := only.Read(ctx)
	if err != nil {
		return err
	}
	if err := only.allOrNothing(ctx, newPlan(have, rules.Rulesets{family(nil, f)})); err != nil {
		return err
	}
	tables, err := t.canaries(ctx, f)
	if err != nil {
		return err
	}
	var errs []error
	for _, table := range tables {
		text := fmt.Appendf(nil, "*%s\n:%s - [0:0]\n-X %[2]s\nCOMMIT\n", table, canary)
		errs = append(errs, t.restore(ctx, f, text))
	}
	return errors.Join(errs...)
}

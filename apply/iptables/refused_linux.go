package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// refused is the error of a run of iptables-restore whose input was refused.
type refused struct {
	err    error
	number int    // of the line in the tool's error; 0 for none
	line   string // that line
}

func (r *refused) Error() string {
	if r.line == "" {
		return r.err.Error()
	}
	return r.err.Error() + ": " + r.line
}

func (r *refused) Unwrap() error { return r.err }

// findRefused finds the Services that cause the rejection of a Plan. first is the rejection of the whole Plan.
// Nothing is committed.
func (t *tables) findRefused(ctx context.Context, p *Plan, first *refused) (apply.Result, error) {
	candidates := map[ir.Name]bool{}
	for op := range p.Operations {
		if op.Verb != apply.Remove && op.Service != (ir.Name{}) {
			candidates[op.Service] = true
		}
	}
	probe := newProbe(t, p.want, candidates)
	err := probe.search(ctx, slices.SortedFunc(maps.Keys(candidates), ir.Name.Compare))
	err = errors.Join(err, probe.clear(ctx))
	if err != nil || len(probe.refused) == 0 {
		err = errors.Join(first, err)
	}
	return apply.Result{Refused: probe.refused}, err
}

// probe tests the rules of Services in a chain that nothing jumps to. It does not affect the rules
// in use.
type probe struct {
	target  *tables
	tables  []trial
	refused []apply.Refusal
}

// trial is the rules of Services in one table.
type trial struct {
	family ir.Family
	table  string
	of     map[ir.Name][]rules.Rule
}

func newProbe(t *tables, want rules.Rulesets, candidates map[ir.Name]bool) *probe {
	p := &probe{target: t}
	for _, r := range ir.Present(want.PerFamily) {
		for _, table := range r.Tables() {
			of := map[ir.Name][]rules.Rule{}
			for i := range table.Chains {
				collect(&table.Chains[i], candidates, of)
			}
			p.tables = append(p.tables, trial{r.Family, table.Name, of})
		}
	}
	return p
}

// collect adds the rules of a chain to those of their Services. Jumps are replaced, since their
// targets are irrelevant and may not exist.
func collect(c *rules.Chain, candidates map[ir.Name]bool, of map[ir.Name][]rules.Rule) {
	owner, _ := c.Service()
	for _, r := range c.Rules {
		s := r.Service()
		if s == (ir.Name{}) {
			s = owner
		}
		if !candidates[s] {
			continue
		}
		if r.Target == rules.Jump {
			r.Target, r.Chain = rules.Return, ""
		}
		of[s] = append(of[s], r)
	}
}

// search finds the refused Services of a group by bisection. It ends when there are so many that the
// cause is shared.
func (p *probe) search(ctx context.Context, group []ir.Name) error {
	for len(group) > 0 && len(p.refused) < apply.MaxRefused {
		named, no, err := p.try(ctx, group)
		switch {
		case err != nil:
			return err
		case no == nil:
			return nil
		case len(group) == 1:
			named = group[0]
		case named == ir.Name{}:
			half := len(group) / 2
			if err := p.search(ctx, group[:half]); err != nil {
				return err
			}
			group = group[half:]
			continue
		}
		if no, err = p.confirm(ctx, named); err != nil {
			return err
		}
		if no != nil {
			p.refused = append(p.refused, apply.Refusal{Service: named, Reason: no})
		}
		group = slices.DeleteFunc(slices.Clone(group), func(s ir.Name) bool { return s == named })
	}
	return nil
}

// confirm tries a refused Service again, and returns the refusal; nil if there is none. A lack of
// memory, or another program that writes without the lock, causes rejections, too, and the legacy tools
// do not print the reason. So it also tries no rules at all, whose rejection is an error.
func (p *probe) confirm(ctx context.Context, service ir.Name) (*refused, error) {
	_, no, err := p.try(ctx, []ir.Name{service})
	if err != nil || no == nil {
		return nil, err
	}
	_, always, err := p.try(ctx, nil)
	if err == nil && always != nil {
		err = always
	}
	return no, err
}

// try returns the rejection of a group, and the Service of the reported line, if any.
func (p *probe) try(ctx context.Context, group []ir.Name) (named ir.Name, no *refused, err error) {
	for _, t := range p.tables {
		text := fmt.Appendf(nil, "*%s\n:%s - [0:0]\n", t.table, rules.ProbeChain)
		owners := make([]ir.Name, 2) // by line
		for _, s := range group {
			for _, r := range t.of[s] {
				text = append(r.Append(append(text, "-A "+rules.ProbeChain+" "...), t.family), '\n')
				owners = append(owners, s)
			}
		}
		err := p.target.restore(ctx, t.family, literal(append(text, "COMMIT\n"...)))
		if no, ok := errors.AsType[*refused](err); ok {
			if i := no.number - 1; i >= 0 && i < len(owners) {
				named = owners[i]
			}
			return named, no, nil
		}
		if err != nil {
			return named, nil, err
		}
	}
	return named, nil, nil
}

// clear removes the probe's chain.
func (p *probe) clear(ctx context.Context) error {
	var errs []error
	for _, t := range p.tables {
		text := fmt.Appendf(nil, "*%s\n:%s - [0:0]\n-X %[2]s\nCOMMIT\n", t.table, rules.ProbeChain)
		errs = append(errs, p.target.restore(ctx, t.family, literal(text)))
	}
	return errors.Join(errs...)
}

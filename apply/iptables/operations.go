package iptables

import (
	"maps"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Operations yields the changes in the order of commit. A chain of one Service is one operation; a
// shared chain has one operation per rule.
func (p *Plan) Operations(yield func(apply.Operation) bool) { p.operations(false, yield) }

// Differences yields the Operations; those on complete chains include the rules.
func (p *Plan) Differences(yield func(apply.Operation) bool) { p.operations(true, yield) }

func (p *Plan) operations(texts bool, yield func(apply.Operation) bool) {
	for _, f := range ir.Present(p.families) {
		for i := range f.tables {
			ops := operations{family: f.want.Family, diff: &f.tables[i], texts: texts, yield: yield}
			if !ops.all() {
				return
			}
		}
	}
}

type operations struct {
	family ir.Family
	diff   *tableDiff
	owners map[string]ir.Name // of existing chains
	texts  bool               // include actual and desired rules
	yield  func(apply.Operation) bool
}

func (o *operations) all() bool {
	for _, c := range o.diff.set {
		if !o.chain(c) {
			return false
		}
	}
	for _, f := range o.diff.fill {
		if !o.rule(apply.Add, f.chain, f.rule) {
			return false
		}
	}
	for _, h := range o.diff.removedJumps {
		if !slices.ContainsFunc(o.diff.addedJumps, func(w rules.BuiltInJump) bool { return equalJump(h, w) }) && !o.rule(apply.Remove, h.Chain, &h.Rule) {
			return false
		}
	}
	for _, h := range o.diff.addedJumps {
		verb := apply.Add
		if slices.ContainsFunc(o.diff.removedJumps, func(old rules.BuiltInJump) bool { return equalJump(h, old) }) {
			verb = apply.Change // of its position
		}
		if !o.rule(verb, h.Chain, &h.Rule) {
			return false
		}
	}
	for _, c := range o.diff.stale {
		op := apply.Operation{Verb: apply.Remove, Object: o.object(c.Name, nil), Service: o.owner(c.Name)}
		o.lines(&op, c.Rules, nil)
		if !o.yield(op) {
			return false
		}
	}
	if !o.diff.wake {
		return true
	}
	op := apply.Operation{Verb: apply.Change, Object: "table " + o.family.NFT() + " " + o.diff.name}
	if o.texts {
		op.Have = []string{"flags dormant"}
	}
	return o.yield(op)
}

// object returns the name of a chain or rule in messages.
func (o *operations) object(chain string, r *rules.Rule) string {
	s := rules.Tool(o.family) + " " + o.diff.name + " " + chain
	if r != nil {
		s += " " + string(r.Append(nil, o.family))
	}
	return s
}

// lines sets the actual and desired rules of a chain.
func (o *operations) lines(op *apply.Operation, have, want []rules.Rule) {
	if o.texts {
		op.LinesOf(o.text(have), o.text(want))
	}
}

func (o *operations) text(rs []rules.Rule) (lines []string) {
	for i := range rs {
		lines = append(lines, string(rs[i].Append(nil, o.family)))
	}
	return lines
}

func (o *operations) rule(v apply.Verb, chain string, r *rules.Rule) bool {
	op := apply.Operation{Verb: v, Object: o.object(chain, r), Service: r.Service()}
	if v != apply.Remove {
		_, op.Origin = r.Why()
	}
	if o.texts {
		text := []string{string(r.Append(nil, o.family))}
		if v != apply.Add {
			op.Have = text
		}
		if v != apply.Remove {
			op.Want = text
		}
	}
	return o.yield(op)
}

func (o *operations) chain(c *rules.Chain) bool {
	have, exists := o.diff.have[c.Name]
	service, own := c.Service()
	if own {
		verb := apply.Add
		if exists {
			verb = apply.Change
		}
		op := apply.Operation{Verb: verb, Object: o.object(c.Name, nil), Service: service}
		if len(c.Rules) > 0 {
			_, op.Origin = c.Rules[len(c.Rules)-1].Why()
		}
		if !exists {
			have = &rules.Chain{}
		}
		o.lines(&op, have.Rules, c.Rules)
		return o.yield(op)
	}
	if !exists {
		if !o.yield(apply.Operation{Verb: apply.Add, Object: o.object(c.Name, nil), Origin: ir.Origin{Object: "default", Reason: "a chain that Services share"}}) {
			return false
		}
		have = &rules.Chain{}
	}
	added, removed := diffRules(have.Rules, c.Rules)
	if exists && len(added)+len(removed) == 0 {
		op := apply.Operation{Verb: apply.Change, Object: o.object(c.Name, nil), Origin: ir.Origin{Object: "default", Reason: "the order of its rules"}}
		o.lines(&op, have.Rules, c.Rules)
		return o.yield(op)
	}
	for _, r := range added {
		if !o.rule(apply.Add, c.Name, r) {
			return false
		}
	}
	for _, r := range removed {
		if !o.rule(apply.Remove, c.Name, r) {
			return false
		}
	}
	return true
}

// owner returns the Service of an existing chain, from its own rules or from those that jump to it.
func (o *operations) owner(chain string) ir.Name {
	if o.owners == nil {
		o.owners = map[string]ir.Name{}
		have := targetsFirst(slices.Collect(maps.Values(o.diff.have)))
		for _, c := range slices.Backward(have) {
			o.own(c)
		}
	}
	return o.owners[chain]
}

// own records the owners of a chain and of the chains that it jumps to.
func (o *operations) own(c *rules.Chain) {
	if s, own := c.Service(); own && s != (ir.Name{}) {
		o.owners[c.Name] = s
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Target != rules.Jump || !rules.OfService(r.Chain) {
			continue
		}
		s := r.Service()
		if s == (ir.Name{}) {
			s = o.owners[c.Name]
		}
		if o.owners[r.Chain] == (ir.Name{}) {
			o.owners[r.Chain] = s
		}
	}
}

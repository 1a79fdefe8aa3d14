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
	out := &apply.Emitter{Yield: yield}
	for _, f := range ir.Present(p.families) {
		for i := range f.tables {
			o := operations{Emitter: out, family: f.want.Family, diff: &f.tables[i], texts: texts}
			o.all()
		}
	}
}

type operations struct {
	*apply.Emitter
	family ir.Family
	diff   *tableDiff
	owners map[string]ir.Name // of existing chains
	texts  bool               // include actual and desired rules
}

func (o *operations) all() {
	for _, c := range o.diff.set {
		o.chain(c)
	}
	for _, f := range o.diff.fill {
		o.rule(apply.Add, f.chain, f.rule)
	}
	for _, h := range o.diff.removedJumps {
		if !hasJump(o.diff.addedJumps, h) {
			o.rule(apply.Remove, h.Chain, &h.Rule)
		}
	}
	for _, h := range o.diff.addedJumps {
		verb := apply.Add
		if hasJump(o.diff.removedJumps, h) {
			verb = apply.Change // of its position
		}
		o.rule(verb, h.Chain, &h.Rule)
	}
	if o.Stopped {
		return
	}
	for _, c := range o.diff.stale {
		o.emit(apply.Operation{Verb: apply.Remove, Object: o.object(c.Name, nil), Service: o.owner(c.Name)}, c.Rules, nil)
	}
	if o.diff.wake {
		op := apply.Operation{Verb: apply.Change, Object: "table " + o.family.NFT() + " " + o.diff.name}
		if o.texts {
			op.Have = []string{"flags dormant"}
		}
		o.Emit(op)
	}
}

// object returns the name of a chain or rule in messages.
func (o *operations) object(chain string, r *rules.Rule) string {
	s := rules.Tool(o.family) + " " + o.diff.name + " " + chain
	if r != nil {
		s += " " + string(r.Append(nil, o.family))
	}
	return s
}

// emit emits an operation on a chain, with its actual and desired rules.
func (o *operations) emit(op apply.Operation, have, want []rules.Rule) {
	if o.texts {
		op.LinesOf(o.text(have), o.text(want))
	}
	o.Emit(op)
}

func (o *operations) text(rs []rules.Rule) (lines []string) {
	for i := range rs {
		lines = append(lines, string(rs[i].Append(nil, o.family)))
	}
	return lines
}

func (o *operations) rule(v apply.Verb, chain string, r *rules.Rule) {
	if o.Stopped {
		return
	}
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
	o.Emit(op)
}

func (o *operations) chain(c *rules.Chain) {
	if o.Stopped {
		return
	}
	have, exists := o.diff.have[c.Name]
	if !exists {
		have = &rules.Chain{}
	}
	op := apply.Operation{Verb: apply.Change, Object: o.object(c.Name, nil)}
	if !exists {
		op.Verb = apply.Add
	}
	if service, own := c.Service(); own {
		op.Service = service
		if len(c.Rules) > 0 {
			_, op.Origin = c.Rules[len(c.Rules)-1].Why()
		}
		o.emit(op, have.Rules, c.Rules)
		return
	}
	added, removed := diffRules(have.Rules, c.Rules)
	if !exists {
		op.Origin = ir.Origin{Object: "default", Reason: "a chain that Services share"}
		o.Emit(op)
	} else if len(added)+len(removed) == 0 {
		op.Origin = ir.Origin{Object: "default", Reason: "the order of its rules"}
		o.emit(op, have.Rules, c.Rules)
	}
	for _, r := range added {
		o.rule(apply.Add, c.Name, r)
	}
	for _, r := range removed {
		o.rule(apply.Remove, c.Name, r)
	}
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

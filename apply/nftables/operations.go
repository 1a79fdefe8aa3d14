package nftables

import (
	"strconv"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// operations emits the operations of a change.
type operations struct {
	*apply.Emitter
	*change
	names  bool   // include names of elements; otherwise operations can only be counted
	texts  bool   // include actual and wanted content
	prefix string // "ip proxyc"
}

func (o *operations) all() {
	if o.table.drop {
		o.Emit(apply.Operation{Verb: apply.Change, Object: "table " + o.prefix, Have: o.lines(o.table.reasons)})
	}
	if o.table.adopt {
		o.Emit(apply.Operation{Verb: apply.Change, Object: "table " + o.prefix, Have: o.lines([]string{codec.FlagPersist}), Want: o.lines([]string{codec.FlagsOwned})})
	}
	o.declarations()
	o.rules()
	o.elementChanges()
	o.affinityEntries()
	o.removals()
}

// lines returns Have or Want of a declaration.
func (o *operations) lines(all []string) []string {
	if !o.texts {
		return nil
	}
	return apply.Lines(all)
}

// each emits the operations of some objects.
func each[T any](o *operations, all []T, operation func(T) apply.Operation) {
	for i := 0; !o.Stopped && i < len(all); i++ {
		o.Emit(operation(all[i]))
	}
}

func (o *operations) declarations() {
	each(o, o.chains.policy, func(ch *rules.Chain) apply.Operation {
		return apply.Operation{Verb: apply.Change, Object: o.prefix + " chain " + ch.Name,
			Have: o.lines([]string{"policy drop"}), Want: o.lines([]string{"policy accept"})}
	})
	each(o, o.sets.create, func(s *rules.Set) apply.Operation {
		return apply.Operation{Verb: apply.Add, Object: o.prefix + " set " + s.Name, Service: s.Port.Service, Origin: s.Origin}
	})
	each(o, o.sets.resize, func(r resize) apply.Operation {
		return apply.Operation{Verb: apply.Change, Object: o.prefix + " set " + r.set.Name, Service: r.set.Port.Service, Origin: r.set.Origin,
			Have: o.lines([]string{sizeText(r.from)}), Want: o.lines([]string{sizeText(r.set.Size)})}
	})
}

func sizeText(n uint32) string { return "size " + strconv.FormatUint(uint64(n), 10) }

func (o *operations) rules() {
	flushed := make(map[string]*rules.Chain, len(o.chains.flush))
	for _, ch := range o.chains.flush {
		flushed[ch.Name] = ch
	}
	each(o, o.chains.fill, func(ch *rules.Chain) apply.Operation {
		op := apply.Operation{Verb: apply.Add, Object: o.prefix + " chain " + ch.Name, Service: ch.Port.Service}
		if len(ch.Rules) > 0 {
			op.Origin = ch.Rules[0].Origin
		}
		have := flushed[ch.Name]
		if have != nil {
			op.Verb = apply.Change
		}
		if o.texts {
			op.LinesOf(o.rulesOf(have), o.rulesOf(ch))
		}
		return op
	})
}

// rulesOf returns the rules of a chain as nft lists them.
func (o *operations) rulesOf(c *rules.Chain) (all []string) {
	if c == nil {
		return nil
	}
	for i := range c.Rules {
		all = append(all, c.Rules[i].Text(o.family))
	}
	return all
}

func (o *operations) elementChanges() {
	for i := 0; !o.Stopped && i < len(o.sets.elements); i++ {
		o.elementChange(&o.sets.elements[i])
	}
	if !o.names {
		for i := 0; !o.Stopped && i < o.sets.loadCount; i++ {
			o.Emit(apply.Operation{Verb: apply.Add})
		}
		return
	}
	if o.sets.load == nil || o.Stopped {
		return
	}
	var sets [len(rules.Fragment{}.Elements)]*rules.Set
	for id := range sets {
		sets[id] = rules.SetID(id).Set()
	}
	rules.LowerBare(o.sets.load, func(id rules.SetID, elements []rules.Element) bool {
		o.elementChange(&elementChange{set: sets[id], added: elements})
		return !o.Stopped
	})
}

func (o *operations) elementChange(e *elementChange) {
	where := o.prefix + " " + e.set.Name + " "
	if e.flush {
		o.Emit(apply.Operation{Verb: apply.Remove, Object: where + "unrecognised elements"})
	}
	var removed map[rules.Key]*rules.Element
	if len(e.removed) > 0 {
		removed = make(map[rules.Key]*rules.Element, len(e.removed))
	}
	for i := range e.removed {
		removed[e.removed[i].Key] = &e.removed[i]
	}
	name := func(k rules.Key) string {
		if !o.names {
			return ""
		}
		return where + e.set.KeyText(k)
	}
	for i := 0; !o.Stopped && i < len(e.added); i++ {
		el := &e.added[i]
		op := apply.Operation{Verb: apply.Add, Object: name(el.Key), Service: o.serviceOf(e.set, el), Origin: *el.Origin}
		if have := removed[el.Key]; have != nil {
			op.Verb, op.Have = apply.Change, o.element(e.set, have)
			delete(removed, el.Key)
		}
		op.Want = o.element(e.set, el)
		o.Emit(op)
	}
	for i := 0; !o.Stopped && i < len(e.removed); i++ {
		if el := &e.removed[i]; removed[el.Key] != nil {
			o.Emit(apply.Operation{Verb: apply.Remove, Object: name(el.Key), Service: o.serviceOf(e.set, el), Have: o.element(e.set, el)})
		}
	}
}

// element returns an element as nft lists it.
func (o *operations) element(s *rules.Set, e *rules.Element) []string {
	if !o.texts {
		return nil
	}
	return []string{s.ElementText(e)}
}

// affinityEntries emits the removal of foreign entries from affinity maps.
func (o *operations) affinityEntries() {
	for _, p := range o.purge {
		var have []string
		for _, a := range p.foreign {
			have = append(have, "clients of "+a.String())
		}
		if len(have) > 0 {
			o.Emit(apply.Operation{Verb: apply.Change, Object: o.prefix + " set " + p.set.Name, Service: p.set.Port.Service,
				Origin: p.set.Origin, Have: o.lines(have)})
		}
	}
}

func (o *operations) removals() {
	each(o, o.chains.removed, func(ch *rules.Chain) apply.Operation {
		op := apply.Operation{Verb: apply.Remove, Object: o.prefix + " chain " + ch.Name, Service: ch.Port.Service}
		if o.texts {
			op.LinesOf(o.rulesOf(ch), nil)
		}
		return op
	})
	each(o, o.sets.removed, func(s *rules.Set) apply.Operation {
		return apply.Operation{Verb: apply.Remove, Object: o.prefix + " set " + s.Name, Service: s.Port.Service}
	})
	each(o, o.table.removed, func(other rules.Object) apply.Operation {
		return apply.Operation{Verb: apply.Remove, Object: o.prefix + " " + other.Kind.String() + " " + other.Name}
	})
	if o.table.kubeProxy {
		o.Emit(apply.Operation{Verb: apply.Remove, Object: "table " + o.family.NFT() + " " + kubeProxyTable})
	}
}

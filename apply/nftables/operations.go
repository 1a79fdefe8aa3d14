package nftables

import (
	"strconv"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// operations names what a change does, one after the other.
type operations struct {
	*change
	names bool   // with the elements' names; without, they can only be counted
	texts bool   // with what the node has and should have
	table string // "ip proxyc"
	yield func(apply.Operation) bool
}

func (o *operations) all() bool {
	if o.drop && !o.yield(apply.Operation{Verb: apply.Change, Object: "table " + o.table, Have: o.lines(o.reasons)}) {
		return false
	}
	if o.adopt && !o.yield(apply.Operation{Verb: apply.Change, Object: "table " + o.table, Have: o.lines([]string{codec.FlagPersist}), Want: o.lines([]string{codec.FlagsOwned})}) {
		return false
	}
	return o.declarations() && o.rules() && o.elementChanges() && o.affinityEntries() && o.removals()
}

// lines are Have or Want of something that is told in words.
func (o *operations) lines(all []string) []string {
	if !o.texts {
		return nil
	}
	return apply.Lines(all)
}

func (o *operations) declarations() bool {
	for _, ch := range o.policy {
		op := apply.Operation{Verb: apply.Change, Object: o.table + " chain " + ch.Name,
			Have: o.lines([]string{"policy drop"}), Want: o.lines([]string{"policy accept"})}
		if !o.yield(op) {
			return false
		}
	}
	for _, s := range o.sets {
		if !o.yield(apply.Operation{Verb: apply.Add, Object: o.table + " set " + s.Name, Service: s.Port.Service, Origin: s.Origin}) {
			return false
		}
	}
	for _, r := range o.resize {
		op := apply.Operation{Verb: apply.Change, Object: o.table + " set " + r.set.Name, Service: r.set.Port.Service, Origin: r.set.Origin,
			Have: o.lines([]string{sizeText(r.from)}), Want: o.lines([]string{sizeText(r.set.Size)})}
		if !o.yield(op) {
			return false
		}
	}
	return true
}

func sizeText(n uint32) string { return "size " + strconv.FormatUint(uint64(n), 10) }

func (o *operations) rules() bool {
	flushed := make(map[string]*rules.Chain, len(o.flush))
	for _, ch := range o.flush {
		flushed[ch.Name] = ch
	}
	for _, ch := range o.fill {
		op := apply.Operation{Verb: apply.Add, Object: o.table + " chain " + ch.Name, Service: ch.Port.Service, Origin: originOf(ch)}
		have := flushed[ch.Name]
		if have != nil {
			op.Verb = apply.Change
		}
		if o.texts {
			op.LinesOf(o.rulesOf(have), o.rulesOf(ch))
		}
		if !o.yield(op) {
			return false
		}
	}
	return true
}

// rulesOf are the rules of a chain as nft lists them, as far as that can be said.
func (o *operations) rulesOf(c *rules.Chain) (all []string) {
	if c == nil {
		return nil
	}
	for i := range c.Rules {
		all = append(all, c.Rules[i].Text(o.family))
	}
	return all
}

func originOf(c *rules.Chain) ir.Origin {
	if len(c.Rules) == 0 {
		return ir.Origin{}
	}
	return c.Rules[0].Origin
}

func (o *operations) elementChanges() bool {
	for i := range o.elements {
		if !o.elementChange(&o.elements[i]) {
			return false
		}
	}
	if !o.names {
		for range o.loadCount {
			if !o.yield(apply.Operation{Verb: apply.Add}) {
				return false
			}
		}
		return true
	}
	if o.load == nil {
		return true
	}
	var sets [len(rules.Fragment{}.Elements)]*rules.Set
	for id := range sets {
		sets[id] = rules.SetID(id).Set()
	}
	return rules.LowerBare(o.load, func(id rules.SetID, elements []rules.Element) bool {
		return o.elementChange(&elementChange{set: sets[id], added: elements})
	}) != nil
}

func (o *operations) elementChange(e *elementChange) bool {
	where := o.table + " " + e.set.Name + " "
	if e.flush && !o.yield(apply.Operation{Verb: apply.Remove, Object: where + "unrecognised elements"}) {
		return false
	}
	var gone map[rules.Key]*rules.Element
	if len(e.removed) > 0 {
		gone = make(map[rules.Key]*rules.Element, len(e.removed))
	}
	for i := range e.removed {
		gone[e.removed[i].Key] = &e.removed[i]
	}
	name := func(k rules.Key) string {
		if !o.names {
			return ""
		}
		return where + e.set.KeyText(k)
	}
	for i := range e.added {
		el := &e.added[i]
		op := apply.Operation{Verb: apply.Add, Object: name(el.Key), Service: o.serviceOf(e.set, el), Origin: *el.Origin}
		if have := gone[el.Key]; have != nil {
			op.Verb, op.Have = apply.Change, o.element(e.set, have)
			delete(gone, el.Key)
		}
		op.Want = o.element(e.set, el)
		if !o.yield(op) {
			return false
		}
	}
	for i := range e.removed {
		el := &e.removed[i]
		if gone[el.Key] == nil {
			continue
		}
		if !o.yield(apply.Operation{Verb: apply.Remove, Object: name(el.Key), Service: o.serviceOf(e.set, el), Have: o.element(e.set, el)}) {
			return false
		}
	}
	return true
}

// element is an element as nft lists it.
func (o *operations) element(s *rules.Set, e *rules.Element) []string {
	if !o.texts {
		return nil
	}
	return []string{s.ElementText(e)}
}

// affinityEntries are what affinity maps remember that no rule put there.
func (o *operations) affinityEntries() bool {
	for _, p := range o.purge {
		var have []string
		for _, a := range p.foreign {
			have = append(have, "clients of "+a.String())
		}
		if len(have) > 0 && !o.yield(apply.Operation{Verb: apply.Change, Object: o.table + " set " + p.set.Name, Service: p.set.Port.Service,
			Origin: p.set.Origin, Have: o.lines(have)}) {
			return false
		}
	}
	return true
}

func (o *operations) removals() bool {
	for _, ch := range o.removedChains {
		op := apply.Operation{Verb: apply.Remove, Object: o.table + " chain " + ch.Name, Service: ch.Port.Service}
		if o.texts {
			op.LinesOf(o.rulesOf(ch), nil)
		}
		if !o.yield(op) {
			return false
		}
	}
	for _, s := range o.removedSets {
		if !o.yield(apply.Operation{Verb: apply.Remove, Object: o.table + " set " + s.Name, Service: s.Port.Service}) {
			return false
		}
	}
	for _, other := range o.removedObjects {
		if !o.yield(apply.Operation{Verb: apply.Remove, Object: o.table + " " + other.Kind.String() + " " + other.Name}) {
			return false
		}
	}
	return !o.kubeProxy || o.yield(apply.Operation{Verb: apply.Remove, Object: "table " + o.family.NFT() + " " + kubeProxyTable})
}

package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// changeOf plans what a Delta makes of a table. It reads nothing, and looks at
// nothing of other Services.
func changeOf(delta *rules.Delta) *change {
	c := &change{family: delta.Family, owners: func(ir.Match) ir.ServicePort { return ir.ServicePort{} }}
	d := difference{change: c, bySet: map[rules.SetID]*elementsOf{}}
	c.chains, c.goneChains = delta.AddedChains, delta.RemovedChains
	c.sets, c.goneSets = slices.Clone(delta.AddedLists), slices.Clone(delta.RemovedLists)
	c.flush, c.fill = slices.Clone(delta.Rewritten), slices.Concat(delta.AddedChains, delta.Rules)
	for i := range delta.Services {
		d.compare(&delta.Services[i].Old, &delta.Services[i].New)
	}
	for _, id := range rules.SharedSets() {
		if len(delta.Added[id])+len(delta.Removed[id]) > 0 {
			e := d.of(id)
			e.add, e.gone = delta.Added[id], delta.Removed[id]
		}
	}
	d.finish()
	for _, s := range delta.AddedLists {
		d.addElements(elementsOf{set: s, add: s.Elements})
	}
	return c
}

// difference collects what changes.
type difference struct {
	*change
	bySet map[rules.SetID]*elementsOf
}

func (d *difference) of(id rules.SetID) *elementsOf {
	if d.bySet[id] == nil {
		d.bySet[id] = &elementsOf{set: id.Set()}
	}
	return d.bySet[id]
}

// compare finds what changes in the Service's own chains, maps and elements.
func (d *difference) compare(old, now *rules.Fragment) {
	for i := range now.Chains {
		ch := &now.Chains[i]
		j := slices.IndexFunc(old.Chains, func(o rules.Chain) bool { return o.Name == ch.Name })
		if j >= 0 && !old.Chains[j].SameRules(ch, d.family) {
			d.flush, d.fill = append(d.flush, &old.Chains[j]), append(d.fill, ch)
		}
	}
	d.compareMaps(old, now)
	for id := range rules.SetID(len(now.Elements)) {
		if slices.Contains(rules.SharedSets(), id) || len(old.Elements[id])+len(now.Elements[id]) == 0 {
			continue
		}
		e := compareFew(id.Set(), old.Elements[id], now.Elements[id])
		if len(e.gone)+len(e.add) > 0 {
			all := d.of(id)
			all.gone, all.add = append(all.gone, e.gone...), append(all.add, e.add...)
		}
	}
}

func (d *difference) compareMaps(old, now *rules.Fragment) {
	for i := range now.Maps {
		m := &now.Maps[i]
		j := slices.IndexFunc(old.Maps, func(o rules.Set) bool { return o.Name == m.Name })
		if j < 0 {
			d.sets = append(d.sets, m)
		} else if grows(&old.Maps[j], m) {
			d.resize = append(d.resize, resize{m, old.Maps[j].Size})
		}
	}
	for i := range old.Maps {
		m := &old.Maps[i]
		if !slices.ContainsFunc(now.Maps, func(o rules.Set) bool { return o.Name == m.Name }) {
			d.goneSets = append(d.goneSets, m)
		}
	}
	if len(old.Maps) > 0 && len(now.Maps) > 0 {
		d.findPurges(old.Ruleset(d.family), now.Ruleset(d.family))
	}
}

// compareFew compares the elements of one Service in one set: those of equal
// position first, which are nearly all.
func compareFew(set *rules.Set, old, now []rules.Element) elementsOf {
	same := 0
	for same < min(len(old), len(now)) && old[same].Key == now[same].Key && sameElement(set, &old[same], &now[same]) {
		same++
	}
	oldEnd, nowEnd := len(old), len(now)
	for oldEnd > same && nowEnd > same && old[oldEnd-1].Key == now[nowEnd-1].Key && sameElement(set, &old[oldEnd-1], &now[nowEnd-1]) {
		oldEnd, nowEnd = oldEnd-1, nowEnd-1
	}
	h, w := *set, *set
	h.Elements, w.Elements = old[same:oldEnd], now[same:nowEnd]
	return compareElements(&h, &w)
}

// finish puts the sets in order.
func (d *difference) finish() {
	for id := range rules.SetID(len(rules.Fragment{}.Elements)) {
		if e := d.bySet[id]; e != nil {
			d.addElements(*e)
		}
	}
}

package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// State is what the Services of one family's table share (chains by number of
// backends, elements without data): it is counted, and goes with the last
// Service that needs it. Since all else is a Service's own, a change is planned
// from that Service alone, however many others there are: nothing is read, and
// nothing of the others is compared.
type State struct {
	family  ir.Family
	users   map[string]int // of chains
	wanters map[sharedElement]int
}

type sharedElement struct {
	set rules.SetID
	key rules.Key
}

// NewState returns the State of a table that has the fixed part alone.
func NewState(f ir.Family) *State {
	return &State{family: f, users: map[string]int{}, wanters: map[sharedElement]int{}}
}

// Update plans changes of Services, whose Old is what the table has, and takes
// them for done: a caller whose commit fails reads the kernel, and begins with a
// new State.
func (s *State) Update(node *ir.Node, changes ...ir.Change) *change {
	c := &change{family: s.family, owners: func(ir.Match) ir.ServicePort { return ir.ServicePort{} }}
	d := difference{State: s, change: c, bySet: map[rules.SetID]*elementsOf{}}
	old, now := make([]rules.Fragment, len(changes)), make([]rules.Fragment, len(changes))
	// All that is needed is counted before anything is let go: a chain that
	// passes from one Service to another stays.
	for i, ch := range changes {
		old[i], now[i] = s.lower(node, ch.Old), s.lower(node, ch.New)
		d.declare(&now[i])
	}
	for i := range changes {
		d.compare(&old[i], &now[i])
	}
	for i := range old {
		d.release(&old[i])
	}
	d.finish()
	return c
}

func (s *State) lower(node *ir.Node, svc *ir.Service) rules.Fragment {
	if svc == nil {
		return rules.Fragment{}
	}
	return rules.LowerService(node, s.family, svc)
}

// difference collects what Updates change.
type difference struct {
	*State
	*change
	bySet map[rules.SetID]*elementsOf
}

// declare counts what the fragment needs, and makes what is not there.
func (d *difference) declare(f *rules.Fragment) {
	for i := range f.Chains {
		ch := &f.Chains[i]
		if d.users[ch.Name]++; d.users[ch.Name] == 1 {
			d.chains, d.fill = append(d.chains, ch), append(d.fill, ch)
		}
	}
	for _, id := range rules.SharedSets() {
		for i := range f.Elements[id] {
			e := &f.Elements[id][i]
			k := sharedElement{id, e.Key}
			if d.wanters[k]++; d.wanters[k] == 1 {
				d.of(id).add = append(d.of(id).add, *e)
			}
		}
	}
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
		if j >= 0 && !sameRules(&old.Chains[j], ch, d.State.family) {
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
		d.findPurges(old.Ruleset(d.State.family), now.Ruleset(d.State.family))
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

// release stops counting what the fragment needed, and lets go what nothing needs.
func (d *difference) release(f *rules.Fragment) {
	for i := range f.Chains {
		ch := &f.Chains[i]
		if d.users[ch.Name]--; d.users[ch.Name] == 0 {
			delete(d.users, ch.Name)
			d.goneChains = append(d.goneChains, ch)
		}
	}
	for _, id := range rules.SharedSets() {
		for i := range f.Elements[id] {
			e := &f.Elements[id][i]
			k := sharedElement{id, e.Key}
			if d.wanters[k]--; d.wanters[k] == 0 {
				delete(d.wanters, k)
				d.of(id).gone = append(d.of(id).gone, *e)
			}
		}
	}
}

// finish puts the sets in order.
func (d *difference) finish() {
	for id := range rules.SetID(len(rules.Fragment{}.Elements)) {
		if e := d.bySet[id]; e != nil {
			d.addElements(*e)
		}
	}
}

package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Lowerer lowers the changes of a Program. It counts what the Services of one
// family's table share (chains by number of backends, elements without data),
// which goes with the last Service that needs it. Since all else is a Service's
// own, a change is lowered from that Service alone, however many others there
// are.
type Lowerer struct {
	family  ir.Family
	users   map[string]int // of chains
	lists   map[string]int // users of sets of source ranges
	wanters map[sharedElement]int
	inUse   inUse
}

// NewLowerer returns the Lowerer of a table that has the fixed part alone.
func NewLowerer(f ir.Family) *Lowerer {
	return &Lowerer{family: f, users: map[string]int{}, lists: map[string]int{}, wanters: map[sharedElement]int{}}
}

// Delta is what changes of Services make of a table.
type Delta struct {
	Family   ir.Family
	Services []ServiceDelta
	// Chains, sets of source ranges, and elements of SharedSets, that nobody needed before, and that
	// nobody needs any longer.
	AddedChains, RemovedChains []*Chain
	AddedLists, RemovedLists   []*Set
	// Rewritten are shared chains whose rules change, as they were, and Rules what they
	// become, each at the place of its old form.
	Rewritten, Rules []*Chain
	Added, Removed   [setCount][]Element
}

// ServiceDelta is what one Service had in the table, and what it has now. What it
// shares with others is in both.
type ServiceDelta struct{ Old, New Fragment }

// Change puts what is new in the place of what was, which must be what the
// Lowerer has, and returns what that makes of the table. The changes are those of
// a node whose settings are the same before and after.
func (l *Lowerer) Change(node *ir.Node, changes ...ir.Change) *Delta {
	d := &Delta{Family: l.family, Services: make([]ServiceDelta, len(changes))}
	// All that is needed is counted before anything is let go: a chain that
	// passes from one Service to another stays.
	for i, c := range changes {
		s := &d.Services[i]
		s.Old, s.New = l.lower(node, c.Old), l.lower(node, c.New)
		l.acquire(&s.New, d)
	}
	for i := range d.Services {
		l.release(&d.Services[i].Old, d)
	}
	l.depend(node, d)
	return d
}

// depend has shared chains do what is needed now.
func (l *Lowerer) depend(node *ir.Node, d *Delta) {
	was, other := l.inUse, false
	for _, c := range d.AddedChains {
		other = l.inUse.note(c.Name, true) || other
	}
	for _, c := range d.RemovedChains {
		other = l.inUse.note(c.Name, false) || other
	}
	if !other {
		return
	}
	old, now := was.chains(node, l.family), l.inUse.chains(node, l.family)
	in := func(all []Chain, name string) *Chain {
		if i := slices.IndexFunc(all, func(c Chain) bool { return c.Name == name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	for i := range now {
		if o := in(old, now[i].Name); o == nil {
			d.AddedChains = append(d.AddedChains, &now[i])
		} else if !o.SameRules(&now[i], l.family) {
			d.Rewritten, d.Rules = append(d.Rewritten, o), append(d.Rules, &now[i])
		}
	}
	for i := range old {
		if in(now, old[i].Name) == nil {
			d.RemovedChains = append(d.RemovedChains, &old[i])
		}
	}
}

// Fill counts what the Services of a Program need, where nothing was counted before.
func (l *Lowerer) Fill(p *ir.Program) {
	one := newLowering(&p.Node, l.family)
	for i := range p.Services {
		one.clear()
		one.service(&p.Services[i])
		var d Delta
		l.acquire(&one.frag, &d)
		for _, c := range d.AddedChains {
			l.inUse.note(c.Name, true)
		}
	}
}

func (l *Lowerer) lower(node *ir.Node, svc *ir.Service) Fragment {
	if svc == nil {
		return Fragment{}
	}
	return LowerService(node, l.family, svc)
}

// acquire counts what the Fragment needs, and notes what is new.
func (l *Lowerer) acquire(f *Fragment, d *Delta) {
	for i := range f.Chains {
		c := &f.Chains[i]
		if l.users[c.Name]++; l.users[c.Name] == 1 {
			d.AddedChains = append(d.AddedChains, c)
		}
	}
	for i := range f.Lists {
		s := &f.Lists[i]
		if l.lists[s.Name]++; l.lists[s.Name] == 1 {
			d.AddedLists = append(d.AddedLists, s)
		}
	}
	for _, id := range SharedSets() {
		for i := range f.Elements[id] {
			e := &f.Elements[id][i]
			k := sharedElement{id, e.Key}
			if l.wanters[k]++; l.wanters[k] == 1 {
				d.Added[id] = append(d.Added[id], *e)
			}
		}
	}
}

// release stops counting what the Fragment needed, and notes what nothing needs.
func (l *Lowerer) release(f *Fragment, d *Delta) {
	for i := range f.Chains {
		c := &f.Chains[i]
		if l.users[c.Name]--; l.users[c.Name] == 0 {
			delete(l.users, c.Name)
			d.RemovedChains = append(d.RemovedChains, c)
		}
	}
	for i := range f.Lists {
		s := &f.Lists[i]
		if l.lists[s.Name]--; l.lists[s.Name] == 0 {
			delete(l.lists, s.Name)
			d.RemovedLists = append(d.RemovedLists, s)
		}
	}
	for _, id := range SharedSets() {
		for i := range f.Elements[id] {
			e := &f.Elements[id][i]
			k := sharedElement{id, e.Key}
			if l.wanters[k]--; l.wanters[k] == 0 {
				delete(l.wanters, k)
				d.Removed[id] = append(d.Removed[id], *e)
			}
		}
	}
}

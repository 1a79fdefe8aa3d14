package nftables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Lowerer lowers the changes of a Program. It counts the users of the parts that
// Services of one family's table share: chains by number of backends, and
// elements without data. A shared part is removed with its last user. All other
// parts belong to one Service. A change is therefore lowered from that Service
// alone, regardless of the number of Services.
//
// The users are the ports of Services, so that only ports that differ are
// lowered. Parts for source ranges are an exception: their user is the Service,
// all of whose ports are then lowered.
type Lowerer struct {
	family  ir.Family
	users   map[string]int // of chains
	lists   map[string]int // users of sets of source ranges
	wanters map[sharedElement]int
	inUse   inUse
}

// NewLowerer returns the Lowerer of a table with only the fixed part.
func NewLowerer(f ir.Family) *Lowerer {
	return &Lowerer{family: f, users: map[string]int{}, lists: map[string]int{}, wanters: map[sharedElement]int{}}
}

// Delta is the change of a table.
type Delta struct {
	Family ir.Family
	Ports  []PortDelta
	// The shared parts that are newly used or no longer used: chains, sets of
	// source ranges, and elements of SharedSets.
	AddedChains, RemovedChains []*Chain
	AddedLists, RemovedLists   []*Set
	// Rewritten are the changed shared chains before the change. Rules are their
	// new versions, in the same order.
	Rewritten, Rules []*Chain
	Added, Removed   [setCount][]Element
}

// PortDelta is the part of one port of a Service before and after a change, shared
// parts included.
type PortDelta struct{ Old, New Fragment }

// Change applies changes, whose old Services must be the Lowerer's current ones,
// and returns the change of the table. The node's settings must not have changed.
func (l *Lowerer) Change(node *ir.Node, changes ...ir.Change) *Delta {
	d := &Delta{Family: l.family, Ports: make([]PortDelta, 0, len(changes))}
	for _, c := range changes {
		old, now := portLowering(node, l.family, c.Old), portLowering(node, l.family, c.New)
		guarded := hasSourceRanges(c.Old) || hasSourceRanges(c.New)
		for _, port := range c.ByPort {
			if guarded || !port.Equivalent() {
				d.Ports = append(d.Ports, PortDelta{old.port(port.Old), now.port(port.New)})
			}
		}
	}
	// Acquire before releasing, so that a chain that moves between ports remains.
	for i := range d.Ports {
		l.acquire(&d.Ports[i].New, d)
	}
	for i := range d.Ports {
		l.release(&d.Ports[i].Old, d)
	}
	l.depend(node, d)
	return d
}

// depend updates the shared chains.
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
	old, now := was.chains(node), l.inUse.chains(node)
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

// Fill counts the parts of a Program's Services in an empty Lowerer.
func (l *Lowerer) Fill(p *ir.Program) {
	one := newLowering(&p.Node, l.family)
	for i := range p.Services {
		svc := &p.Services[i]
		one.clear(svc)
		for _, port := range (ir.Change{New: svc}).ByPort {
			one.clearPort()
			one.ports(port.New)
			var d Delta
			l.acquire(&one.frag, &d)
			for _, c := range d.AddedChains {
				l.inUse.note(c.Name, true)
			}
		}
	}
}

// portLowering lowers the ports of a Service; nil for nil.
func portLowering(node *ir.Node, f ir.Family, svc *ir.Service) *lowering {
	if svc == nil {
		return nil
	}
	l := newLowering(node, f)
	l.whole = svc
	return l
}

// port returns the Fragment of the next port, which contains only that port.
func (l *lowering) port(svc *ir.Service) Fragment {
	if svc == nil {
		return Fragment{}
	}
	l.frag = Fragment{}
	l.clearPort()
	l.reserve([]ir.Service{*svc})
	l.ports(svc)
	return l.frag
}

func hasSourceRanges(svc *ir.Service) bool {
	return svc != nil && slices.ContainsFunc(svc.Frontends, func(f ir.Frontend) bool { return len(f.SourceRanges) > 0 })
}

// acquire counts the parts of a Fragment and records newly used ones.
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

// release uncounts the parts of a Fragment and records unused ones.
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

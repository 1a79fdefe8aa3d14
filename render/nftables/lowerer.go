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

// Change applies changes, whose old Services must be the Lowerer's current ones.
// It returns the table before and after, each reduced to the parts that may
// differ. The node's settings must not have changed.
func (l *Lowerer) Change(node *ir.Node, changes ...ir.Change) (have, want *Ruleset) {
	old, now := newLowering(node, l.family), newLowering(node, l.family)
	for _, c := range changes {
		if c.Old != nil {
			old.alone(c.Old)
		}
		if c.New != nil {
			now.alone(c.New)
		}
	}
	// Add users before removing others, so that a part that moves between Services remains.
	l.count(&now.frag, 1)
	l.count(&old.frag, -1)
	was := l.inUse
	gone, added := l.inUse.noteAll(old.frag.Chains, false), l.inUse.noteAll(now.frag.Chains, true)
	have, want = tables(l.family, &old.frag, &now.frag)
	if gone || added {
		have.Chains, want.Chains = append(have.Chains, was.chains(node)...), append(want.Chains, l.inUse.chains(node)...)
	}
	return have, want
}

// tables returns two Fragments as tables without the fixed parts that neither has.
func tables(f ir.Family, old, now *Fragment) (have, want *Ruleset) {
	used := 0
	for id := range old.Elements {
		used += min(1, len(old.Elements[id])+len(now.Elements[id]))
	}
	table := func(of *Fragment) *Ruleset {
		sets := make([]Set, 0, used+len(of.Maps)+len(of.Lists))
		for id := range of.Elements {
			if len(old.Elements[id])+len(now.Elements[id]) > 0 {
				sets = append(sets, fixedSets[id])
				sets[len(sets)-1].Elements = of.Elements[id]
			}
		}
		return &Ruleset{Family: f, Chains: of.Chains, Sets: append(append(sets, of.Maps...), of.Lists...)}
	}
	return table(old), table(now)
}

// Fill counts the parts of a Program's Services in an empty Lowerer.
func (l *Lowerer) Fill(p *ir.Program) {
	one := newLowering(&p.Node, l.family)
	for i := range p.Services {
		one.frag.clear()
		one.alone(&p.Services[i])
		l.count(&one.frag, 1)
		l.inUse.noteAll(one.frag.Chains, true)
	}
}

// count adds n users to the shared parts of a Fragment. It omits those that are used before and
// after. All other parts remain.
func (l *Lowerer) count(f *Fragment, n int) {
	f.Chains = count(l.users, f.Chains, n, func(c *Chain) (string, bool) { return c.Name, c.Port == ir.ServicePort{} })
	f.Lists = count(l.lists, f.Lists, n, func(s *Set) (string, bool) { return s.Name, true })
	for _, id := range sharedSets() {
		f.Elements[id] = count(l.wanters, f.Elements[id], n, func(e *Element) (sharedElement, bool) { return sharedElement{id, e.Key}, true })
	}
}

func count[K comparable, T any](users map[K]int, parts []T, n int, shared func(*T) (K, bool)) []T {
	return slices.DeleteFunc(parts, func(part T) bool {
		key, ok := shared(&part)
		if !ok {
			return false
		}
		before := users[key]
		if users[key] += n; users[key] == 0 {
			delete(users, key)
		}
		return before > 0 && before+n > 0
	})
}

package ipvs

import (
	"maps"
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Lowerer lowers the changes of a Program. It counts the users of shared parts:
// elements of sets (including the addresses of kube-ipvs0 and local backends),
// and virtual servers that several Services claim. All other parts belong to one
// Service. A change is therefore lowered from that Service alone, regardless of
// the number of Services.
type Lowerer struct {
	node   *Node
	users  map[ElementKey]int
	size   [numSets]int            // elements of each set
	claims map[ir.Match][]claimant // to virtual servers
}

// claimant is a Service that claims a virtual server.
type claimant struct {
	kind    ir.Kind
	service *ir.Service
}

// before compares two claimants of a virtual server; the first one owns it. As in
// Lower, equal kinds are ordered by name.
func (c claimant) before(o claimant) int {
	if c.kind != o.kind {
		return int(c.kind) - int(o.kind)
	}
	return c.service.Name.Compare(o.service.Name)
}

// NewLowerer returns the Lowerer of Lower(p).
func NewLowerer(p *ir.Program) *Lowerer {
	node := p.Node
	l := &Lowerer{node: LowerNode(p.Family, &node), users: map[ElementKey]int{}, claims: map[ir.Match][]claimant{}}
	for i := range p.Services {
		s := &p.Services[i]
		f := l.node.LowerService(s)
		l.count(&f, 1, &Ruleset{})
		l.claim(s, &f)
	}
	return l
}

// Size returns the number of elements of a set.
func (l *Lowerer) Size(s Set) int { return l.size[s] }

// Change applies changes, whose old Services must be the Lowerer's current ones.
// It returns the Ruleset before and after, each without its rules, and reduced to
// the parts that may differ.
func (l *Lowerer) Change(changes []ir.Change) (have, want *Ruleset) {
	have, want = &Ruleset{Family: l.node.family}, &Ruleset{Family: l.node.family}
	old, now := make([]Fragment, len(changes)), make([]Fragment, len(changes))
	keys := map[ir.Match]bool{}
	for i, c := range changes {
		old[i], now[i] = l.lower(c.Old), l.lower(c.New)
		for _, v := range slices.Concat(old[i].VirtualServers, now[i].VirtualServers) {
			keys[v.Key] = true
		}
	}
	server := l.fragments(changes, old, now)
	add := func(r *Ruleset) {
		for key := range keys {
			if v := server(l.claims[key], key); v != nil {
				r.VirtualServers = append(r.VirtualServers, *v)
			}
		}
	}
	add(have)
	for i, c := range changes {
		l.unclaim(c.Old, &old[i])
	}
	// Add users before removing others, so that shared parts that move between
	// Services remain.
	for i, c := range changes {
		l.claim(c.New, &now[i])
		l.count(&now[i], 1, want)
	}
	for i := range changes {
		l.count(&old[i], -1, have)
	}
	add(want)
	have.canon()
	want.canon()
	return have, want
}

// Same reports whether the kernel's settings of both are equal, regardless of
// their real servers.
func (v *VirtualServer) Same(o *VirtualServer) bool {
	return v.Key == o.Key && v.Scheduler == o.Scheduler && v.Flags == o.Flags && v.Timeout == o.Timeout
}

func (l *Lowerer) lower(s *ir.Service) Fragment {
	if s == nil {
		return Fragment{}
	}
	return l.node.LowerService(s)
}

// fragments returns a function that finds the virtual server of the first
// claimant. It looks in the given Fragments, or lowers an unchanged Service,
// which is rare.
func (l *Lowerer) fragments(changes []ir.Change, old, now []Fragment) func([]claimant, ir.Match) *VirtualServer {
	at := map[*ir.Service]*Fragment{}
	for i, c := range changes {
		at[c.Old], at[c.New] = &old[i], &now[i]
	}
	return func(claimants []claimant, key ir.Match) *VirtualServer {
		if len(claimants) == 0 {
			return nil
		}
		first := claimants[0]
		f := at[first.service]
		if f == nil {
			lowered := l.lower(first.service)
			f = &lowered
		}
		i := slices.IndexFunc(f.VirtualServers, func(v VirtualServer) bool { return v.Key == key && v.Kind == first.kind })
		return &f.VirtualServers[i]
	}
}

func (l *Lowerer) claim(s *ir.Service, f *Fragment) {
	for i := range f.VirtualServers {
		v := &f.VirtualServers[i]
		c := claimant{v.Kind, s}
		list := l.claims[v.Key]
		at, _ := slices.BinarySearchFunc(list, c, claimant.before)
		l.claims[v.Key] = slices.Insert(list, at, c)
	}
}

func (l *Lowerer) unclaim(s *ir.Service, f *Fragment) {
	for i := range f.VirtualServers {
		key := f.VirtualServers[i].Key
		rest := slices.DeleteFunc(l.claims[key], func(c claimant) bool { return c.service.Name == s.Name })
		if len(rest) == 0 {
			delete(l.claims, key)
		} else {
			l.claims[key] = rest
		}
	}
}

// count adds n users, 1 or -1, to the elements of a Fragment, and records those that are now used, or
// no longer.
func (l *Lowerer) count(f *Fragment, n int, changed *Ruleset) {
	for i := range f.Elements {
		k := f.Elements[i].ElementKey
		if before := l.users[k]; before == 0 || before+n == 0 {
			l.size[k.Set] += n
			changed.Elements = append(changed.Elements, f.Elements[i])
		}
		if l.users[k] += n; l.users[k] == 0 {
			delete(l.users, k)
		}
	}
}

// LowerRules returns the iptables part of a node's Programs.
func LowerRules(programs ir.Programs) iptables.Rulesets {
	var all iptables.Rulesets
	for f, p := range ir.Present(programs) {
		*all.At(f) = NewRulesLowerer(p).ruleset()
	}
	return all
}

// RulesLowerer lowers changes of the iptables part. Only Services whose source
// ranges exclude the node itself have rules there.
type RulesLowerer struct {
	node *Node
	out  map[ir.Name][]iptables.Rule
	now  *iptables.Ruleset // nil if it must be rebuilt
}

// NewRulesLowerer returns the RulesLowerer of a Program.
func NewRulesLowerer(p *ir.Program) *RulesLowerer {
	node := p.Node
	l := &RulesLowerer{node: LowerNode(p.Family, &node), out: map[ir.Name][]iptables.Rule{}}
	for i := range p.Services {
		l.put(&p.Services[i])
	}
	return l
}

func (l *RulesLowerer) put(s *ir.Service) (changed bool) {
	var rules []iptables.Rule
	for i := range s.Frontends {
		if f := &s.Frontends[i]; !f.Match.IsNodePort() && len(f.SourceRanges) > 0 {
			rules = append(rules, l.node.outFilter(f)...)
		}
	}
	if len(rules) == 0 {
		return false
	}
	l.out[s.Name] = rules
	return true
}

func (l *RulesLowerer) ruleset() *iptables.Ruleset {
	if l.now == nil {
		var out []iptables.Rule
		for _, name := range slices.SortedFunc(maps.Keys(l.out), ir.Name.Compare) {
			out = append(out, l.out[name]...)
		}
		l.now = l.node.Rules(out)
	}
	return l.now
}

// Change applies changes and returns the Ruleset before and after.
func (l *RulesLowerer) Change(changes []ir.Change) (have, want *iptables.Ruleset) {
	have = l.ruleset()
	for _, c := range changes {
		if l.out[c.Name] != nil {
			delete(l.out, c.Name)
			l.now = nil
		}
		if c.New != nil && l.put(c.New) {
			l.now = nil
		}
	}
	return have, l.ruleset()
}

// Size returns the number of rules in each table of the Ruleset, in the order of
// its Tables.
func (l *RulesLowerer) Size() [2]int { return l.ruleset().Size() }

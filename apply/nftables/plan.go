package nftables

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

const kubeProxyTable = "kube-proxy"

// Plan is the difference between what a node has and what it should have.
type Plan struct {
	families  ir.PerFamily[*change] // nil: nothing to do with it
	want      func() rules.Tables   // to plan again from; nil if it is of changes
	purgesAll bool                  // all affinity maps are looked through
	// generation is that of all tables before the node was read; 0: not known. last
	// forbids to plan again.
	generation uint32
	final      bool

	desired apply.Desired
}

// change is what a Plan does in one family, as the kernel is told it: sets and
// chains are declared first, since rules and elements name them; elements that
// go or change are removed; rules are rewritten; elements are added; and what
// nothing names any more is removed.
type change struct {
	family       ir.Family
	drop, create bool         // the table: remove what is there, make it
	flags        string       // what it is made with
	adopt        bool         // the table, which had an owner before
	kubeProxy    bool         // remove kube-proxy's table
	sets         []*rules.Set // to declare
	resize       []resize
	chains       []*rules.Chain // to declare
	elements     []elementChange
	// load has the elements of fixed sets that are all to be added, where the table is made: too many
	// to be held as long as the Plan is. nil: elements has all.
	load      *ir.Program
	loadCount int            // how many they are
	flush     []*rules.Chain // chains whose rules go
	fill      []*rules.Chain // chains whose rules are written
	// What goes. A chain that the kernel still holds to stays, empty.
	removedChains  []*rules.Chain
	removedSets    []*rules.Set
	removedObjects []rules.Object
	// policy are the base chains that are to let through what no rule decides.
	policy  []*rules.Chain
	reasons []string // the table is made anew: "set backends: size 10"
	// Affinity maps that may remember backends which are gone.
	purge []purge
	// owners of elements that were read, which do not tell theirs.
	owners func(ir.Match) ir.ServicePort
}

// resize has a set hold more elements that rules add.
type resize struct {
	set  *rules.Set
	from uint32
}

// elementChange is what changes in one set. An element whose data change is in both.
type elementChange struct {
	set            *rules.Set // its declaration
	removed, added []rules.Element
	// flush reports whether the set has elements that cannot be named: all go, and
	// all come, the same transaction later.
	flush bool
	all   []rules.Element
}

// purge says which backends an affinity map may remember.
type purge struct {
	set  *rules.Set
	keep map[netip.Addr]struct{}
	// foreign are others, of which nobody knows how they came there.
	foreign []netip.Addr
}

func (c *change) empty() bool {
	return !c.drop && !c.create && !c.adopt && !c.kubeProxy &&
		len(c.sets)+len(c.resize)+len(c.chains)+len(c.elements)+len(c.flush)+len(c.fill)+len(c.policy)+
			len(c.removedChains)+len(c.removedSets)+len(c.removedObjects) == 0 &&
		!slices.ContainsFunc(c.purge, func(p purge) bool { return len(p.foreign) > 0 })
}

// newPlan compares two states, family by family.
func newPlan(have, want rules.Tables) *Plan {
	p := &Plan{want: func() rules.Tables { return want }}
	for f, w := range ir.Present(want.PerFamily) {
		*p.families.At(f) = compareTables(tableIn(have, f), w)
	}
	return p
}

// planFor is newPlan for Programs, whose tables have some flags. A table that is not there, or is made
// anew, is loaded.
func planFor(have state, want ir.Programs, flags string) *Plan {
	p := &Plan{want: sync.OnceValue(func() rules.Tables {
		tables := rules.LowerAll(want)
		for _, r := range ir.Present(tables.PerFamily) {
			r.Flags = flags
		}
		return tables
	})}
	for f, program := range ir.Present(want) {
		*p.families.At(f) = changeFor(&have, f, program, flags)
	}
	return p
}

func changeFor(have *state, f ir.Family, program *ir.Program, flags string) *change {
	h := tableIn(have.Tables, f)
	if h.Exists {
		h, w := have.unmatched(f, program)
		w.Flags = flags
		if c := compareTables(h, w); !c.drop {
			// What was read and is no longer wanted tells its owner, but for what only goes with something that stays.
			read, wanted := c.owners, ownersOf(program)
			c.owners = func(m ir.Match) ir.ServicePort { return cmp.Or(read(m), wanted(m)) }
			return c
		}
	}
	loads := 0
	bare := rules.LowerBare(program, func(_ rules.SetID, elements []rules.Element) bool {
		loads += len(elements)
		return true
	})
	bare.Flags = flags
	c := compareTables(h, bare)
	c.load, c.loadCount = program, loads
	return c
}

// tableIn returns the table of a family; without any, one that is not there.
func tableIn(have rules.Tables, f ir.Family) *rules.Ruleset {
	if r := have.Of(f); r != nil {
		return r
	}
	return &rules.Ruleset{Family: f}
}

// compareTables returns what makes a whole table out of another one, which the family has now.
func compareTables(have, want *rules.Ruleset) *change {
	why, from := incompatible(have, want), have
	if len(why) > 0 {
		from = &rules.Ruleset{}
	}
	c := difference(from, want)
	c.reasons, c.drop, c.owners = why, len(why) > 0, ownersIn(have)
	c.kubeProxy, c.flags = have.KubeProxy, want.Flags
	c.create = !from.Exists
	c.adopt = from.Exists && from.Flags == codec.FlagPersist && want.Flags == codec.FlagsOwned
	c.removedObjects = from.Objects
	return c
}

// unloaded returns the Plan with all elements, and whether there are any that it does not hold.
func (p *Plan) unloaded() (*Plan, bool) {
	some := false
	all := *p
	for f, c := range ir.Present(p.families) {
		if c.load == nil {
			continue
		}
		some = true
		whole := *c
		whole.load, whole.loadCount, whole.elements = nil, 0, nil
		for i := range p.want().Of(f).Sets {
			s := &p.want().Of(f).Sets[i]
			whole.addElements(elementChange{set: s, added: s.Elements})
		}
		*all.families.At(f) = &whole
	}
	return &all, some
}

// fixedSet returns the fixed set of a name.
func fixedSet(name string) (id rules.SetID, ok bool) {
	for id := range rules.SetID(len(rules.Fragment{}.Elements)) {
		if id.String() == name {
			return id, true
		}
	}
	return 0, false
}

// purgeAll makes the Plan look through all affinity maps that stay, for
// backends that are gone.
func (p *Plan) purgeAll() {
	p.purgesAll = true
	for f, c := range ir.Present(p.families) {
		if c.purge = nil; c.create {
			continue // its maps are new
		}
		want := p.want().Of(f)
		keep := remembered(want)
		for i := range want.Sets {
			s := &want.Sets[i]
			if s.Timeout > 0 && !slices.ContainsFunc(c.sets, func(new *rules.Set) bool { return new.Name == s.Name }) {
				c.purge = append(c.purge, purge{set: s, keep: keep[s.Name]})
			}
		}
	}
}

// purges reports whether affinity maps may remember backends that go.
func (p *Plan) purges() bool {
	for _, c := range ir.Present(p.families) {
		if len(c.purge) > 0 {
			return true
		}
	}
	return false
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool {
	for _, c := range ir.Present(p.families) {
		if !c.empty() {
			return false
		}
	}
	return !p.purgesAll
}

// Gone returns the tables that are not there.
func (p *Plan) Gone() (all []apply.Gone) {
	for _, c := range ir.Present(p.families) {
		if table := c.family.NFT() + " " + rules.Table; c.create && !c.drop {
			all = append(all, apply.Gone{What: "table " + table, Within: table + " "})
		}
	}
	return all
}

// RemovedFrontends returns the frontends that the node has and will not have any longer: a
// removed element that no added one replaces.
func (p *Plan) RemovedFrontends() []ir.Match {
	var gone []ir.Match
	for _, c := range ir.Present(p.families) {
		stay := map[ir.Match]bool{}
		for _, e := range c.elements {
			for i := range e.added {
				stay[matchOf(e.set, &e.added[i].Key)] = true
			}
		}
		for _, e := range c.elements {
			if !dispatches(e.set.Name) {
				continue
			}
			for i := range e.removed {
				if m := matchOf(e.set, &e.removed[i].Key); !stay[m] {
					gone = append(gone, m)
				}
			}
		}
	}
	slices.SortFunc(gone, ir.Match.Compare)
	return slices.Compact(gone)
}

// dispatches reports whether every frontend with endpoints, or every one without, is in the set.
func dispatches(set string) bool {
	switch set {
	case rules.ServiceIPs.String(), rules.ServicePorts.String(), rules.NoEndpointIPs.String(), rules.NoEndpointPorts.String():
		return true
	}
	return false
}

// matchOf returns the frontend that a key is about; zero if it is about none.
func matchOf(s *rules.Set, k *rules.Key) ir.Match {
	switch {
	case len(s.Key) < 2 || s.Name == rules.Hairpin.String():
		return ir.Match{}
	case len(s.Key) > 3 && s.Key[1] == rules.TypePort: // backend first
		return ir.Match{Addr: k.Addr2, Protocol: k.Proto, Port: k.Port2}
	}
	return ir.Match{Addr: k.Addr, Protocol: k.Proto, Port: k.Port}
}

// ownersIn finds the service ports of frontends by the comments that a Ruleset
// has. It looks for them when it is first asked.
func ownersIn(r *rules.Ruleset) func(ir.Match) ir.ServicePort {
	var byMatch map[ir.Match]ir.ServicePort
	return func(m ir.Match) ir.ServicePort {
		if byMatch == nil {
			byMatch = map[ir.Match]ir.ServicePort{}
			for i := range r.Sets {
				s := &r.Sets[i]
				for j := range s.Elements {
					if e := &s.Elements[j]; dispatches(s.Name) && e.Frontend != nil {
						byMatch[matchOf(s, &e.Key)] = e.Frontend.Port
					}
				}
			}
		}
		return byMatch[m]
	}
}

// serviceOf returns the Service of an element; zero if Services share it.
func (c *change) serviceOf(s *rules.Set, e *rules.Element) ir.Name {
	if e.Frontend != nil {
		return e.Frontend.Port.Service
	}
	if m := matchOf(s, &e.Key); m.Port != 0 {
		return c.owners(m).Service
	}
	return ir.Name{}
}

// Operations returns everything that a commit does, in its order.
func (p *Plan) Operations(yield func(apply.Operation) bool) {
	p.operations(operations{names: true, yield: yield})
}

// Differences returns the Operations with rules, elements and words of
// declarations as nft lists them.
func (p *Plan) Differences(yield func(apply.Operation) bool) {
	p.operations(operations{names: true, texts: true, yield: yield})
}

// Total counts the Operations.
func (p *Plan) Total() (total apply.Count) {
	p.operations(operations{yield: func(op apply.Operation) bool {
		total.Add(op.Verb)
		return true
	}})
	return total
}

func (p *Plan) operations(ops operations) {
	for _, c := range ir.Present(p.families) {
		ops.change, ops.table = c, c.family.NFT()+" "+rules.Table
		if !ops.all() {
			return
		}
	}
}

// Without returns the plan without some objects. A table that is made anew, or a
// set that is emptied, is made with all that belongs into it: of these nothing
// can be left out.
func (p *Plan) Without(objects map[string]bool) (apply.Plan, bool) {
	rest := &Plan{} // not to be planned again: what was wanted may not be wanted any longer
	for f, c := range ir.Present(p.families) {
		if c.drop || c.create || slices.ContainsFunc(c.elements, func(e elementChange) bool { return e.flush }) {
			return nil, false
		}
		*rest.families.At(f) = c.withoutObjects(objects)
	}
	return rest, true
}

func (c *change) withoutObjects(objects map[string]bool) *change {
	rest := *c
	table := c.family.NFT() + " " + rules.Table
	chains := func(all []*rules.Chain) []*rules.Chain {
		return slices.DeleteFunc(slices.Clone(all), func(ch *rules.Chain) bool { return objects[table+" chain "+ch.Name] })
	}
	sets := func(all []*rules.Set) []*rules.Set {
		return slices.DeleteFunc(slices.Clone(all), func(s *rules.Set) bool { return objects[table+" set "+s.Name] })
	}
	rest.chains, rest.flush, rest.fill, rest.removedChains = chains(c.chains), chains(c.flush), chains(c.fill), chains(c.removedChains)
	rest.sets, rest.removedSets = sets(c.sets), sets(c.removedSets)
	rest.elements = nil
	for _, e := range c.elements {
		elements := func(all []rules.Element) []rules.Element {
			return slices.DeleteFunc(slices.Clone(all), func(el rules.Element) bool {
				return objects[table+" "+e.set.Name+" "+e.set.KeyText(el.Key)]
			})
		}
		rest.addElements(elementChange{set: e.set, removed: elements(e.removed), added: elements(e.added)})
	}
	rest.purge = nil // of what was wanted then
	return &rest
}

// withoutServices returns the plan without anything of the Services, and without the
// removal of some chains and sets.
func (p *Plan) withoutServices(services map[ir.Name]bool, keep map[string]bool) *Plan {
	rest := *p
	rest.families = ir.PerFamily[*change]{}
	for f, c := range ir.Present(p.families) {
		*rest.families.At(f) = c.withoutServices(services, keep)
	}
	return &rest
}

func (c *change) withoutServices(services map[ir.Name]bool, keep map[string]bool) *change {
	rest := *c
	chains := func(all []*rules.Chain, leave map[string]bool) []*rules.Chain {
		return slices.DeleteFunc(slices.Clone(all), func(ch *rules.Chain) bool {
			return services[ch.Port.Service] || leave["chain "+ch.Name]
		})
	}
	sets := func(all []*rules.Set, leave map[string]bool) []*rules.Set {
		return slices.DeleteFunc(slices.Clone(all), func(s *rules.Set) bool {
			return services[s.Port.Service] || leave["set "+s.Name]
		})
	}
	rest.chains, rest.flush, rest.fill = chains(c.chains, nil), chains(c.flush, nil), chains(c.fill, nil)
	rest.removedChains, rest.sets, rest.removedSets = chains(c.removedChains, keep), sets(c.sets, nil), sets(c.removedSets, keep)
	rest.removedObjects = slices.DeleteFunc(slices.Clone(c.removedObjects), func(o rules.Object) bool { return keep[o.Kind.String()+" "+o.Name] })
	rest.elements = nil
	for _, e := range c.elements {
		elements := func(all []rules.Element) []rules.Element {
			return slices.DeleteFunc(slices.Clone(all), func(el rules.Element) bool { return services[c.serviceOf(e.set, &el)] })
		}
		rest.addElements(elementChange{e.set, elements(e.removed), elements(e.added), e.flush, elements(e.all)})
	}
	rest.purge = slices.DeleteFunc(slices.Clone(c.purge), func(p purge) bool { return services[p.set.Port.Service] })
	rest.dropUnusedSources()
	return &rest
}

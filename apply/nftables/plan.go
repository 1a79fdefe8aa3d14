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

// Plan is the difference between the actual and the wanted tables of both families.
type Plan struct {
	families  ir.PerFamily[*change] // nil without changes
	want      func() rules.Tables   // for planning again; nil in a Plan of changed Services
	purgesAll bool                  // search all affinity maps for removed backends
	final     bool                  // do not plan again

	desired apply.Desired
}

// change is the difference of the table of one family. Its order in a batch is: declare sets and
// chains, which rules and elements name; remove obsolete and changed elements; rewrite rules; add
// elements; remove what is no longer named.
type change struct {
	family ir.Family
	table  tableChange
	chains chainChanges
	sets   setChanges
	purge  []purge // affinity maps that may contain removed backends
	// owners returns the service ports of frontends whose elements were read, and do not name them.
	owners func(ir.Match) ir.ServicePort
}

// tableChange is the change of the table itself, and of what proxyc never creates in it.
type tableChange struct {
	drop      bool
	create    bool
	reasons   []string // for drop: "set backends: size 10"
	flags     string   // to create the table with
	adopt     bool     // become the owner of a table that had another one before
	kubeProxy bool     // remove kube-proxy's table
	removed   []rules.Object
}

// chainChanges are the changes of chains and their rules.
type chainChanges struct {
	create, removed []*rules.Chain // removed ones are only emptied if the kernel still uses them
	flush           []*rules.Chain // whose rules are removed
	fill            []*rules.Chain // whose rules are added
	policy          []*rules.Chain // base chains whose policy is set to accept
}

// setChanges are the changes of sets and their elements.
type setChanges struct {
	create, removed []*rules.Set
	resize          []resize
	elements        []elementChange
	// load is set if all elements of the fixed sets are added, since the table is created. The Plan
	// does not hold them, because they may be too many. loadCount is their number.
	load      *ir.Program
	loadCount int
}

// resize increases the maximum number of elements that rules add to a set.
type resize struct {
	set  *rules.Set
	from uint32
}

// elementChange is the change of the elements of one set. Changed elements are in removed and in
// added.
type elementChange struct {
	set            *rules.Set // the declaration
	removed, added []rules.Element
	flush          bool            // the set has elements that cannot be named: remove all, and then add all
	all            []rules.Element // for flush
}

// purge is the removal of entries of an affinity map.
type purge struct {
	set     *rules.Set
	keep    map[netip.Addr]struct{} // backends that may be in the map
	foreign []netip.Addr            // backends in the map that no rule adds
}

func (c *change) empty() bool {
	return !c.table.drop && !c.table.create && !c.table.adopt && !c.table.kubeProxy &&
		len(c.sets.create)+len(c.sets.resize)+len(c.chains.create)+len(c.sets.elements)+len(c.chains.flush)+len(c.chains.fill)+len(c.chains.policy)+
			len(c.chains.removed)+len(c.sets.removed)+len(c.table.removed) == 0 &&
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

// declaration is what Programs do not define of a table.
type declaration struct {
	flags    string
	counters apply.ServiceMetrics
}

// of declares a wanted table, which may have to keep the counters of the existing one.
func (d declaration) of(want, have *rules.Ruleset) {
	want.Flags = d.flags
	want.CountServices(d.counters == apply.MetricsServices || d.counters == "" && have.CountsServices())
}

// planFor is newPlan for the tables of Programs with a declaration. If a table does not exist or is
// recreated, its elements are loaded.
func planFor(have state, want ir.Programs, d declaration) *Plan {
	p := &Plan{want: sync.OnceValue(func() rules.Tables {
		tables := rules.LowerAll(want)
		for f, r := range ir.Present(tables.PerFamily) {
			d.of(r, tableIn(have.Tables, f))
		}
		return tables
	})}
	for f, program := range ir.Present(want) {
		*p.families.At(f) = changeFor(&have, f, program, d)
	}
	return p
}

func changeFor(have *state, f ir.Family, program *ir.Program, d declaration) *change {
	h := tableIn(have.Tables, f)
	if h.Exists {
		h, w := have.unmatched(f, program)
		d.of(w, h)
		if c := compareTables(h, w); !c.table.drop {
			// Obsolete elements name their owner, except those of a part of a remaining Service.
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
	d.of(bare, h)
	c := compareTables(h, bare)
	c.sets.load, c.sets.loadCount = program, loads
	return c
}

// tableIn returns the table of a family; without any, one that is not there.
func tableIn(have rules.Tables, f ir.Family) *rules.Ruleset {
	if r := have.Of(f); r != nil {
		return r
	}
	return &rules.Ruleset{Family: f}
}

// compareTables returns the changes from the existing table of a family to the wanted one.
func compareTables(have, want *rules.Ruleset) *change {
	why, from := incompatible(have, want), have
	if len(why) > 0 {
		from = &rules.Ruleset{}
	}
	c := difference(from, want)
	c.table.reasons, c.table.drop, c.owners = why, len(why) > 0, ownersIn(have)
	c.table.kubeProxy, c.table.flags = have.KubeProxy, want.Flags
	c.table.create = !from.Exists
	c.table.adopt = from.Exists && from.Flags == codec.FlagPersist && want.Flags == codec.FlagsOwned
	c.table.removed = from.Objects
	return c
}

// unloaded returns the Plan with the elements of load. It returns false if there are none.
func (p *Plan) unloaded() (*Plan, bool) {
	some := false
	all := *p
	for f, c := range ir.Present(p.families) {
		if c.sets.load == nil {
			continue
		}
		some = true
		whole := *c
		whole.sets.load, whole.sets.loadCount, whole.sets.elements = nil, 0, nil
		for i := range p.want().Of(f).Sets {
			s := &p.want().Of(f).Sets[i]
			whole.addElements(elementChange{set: s, added: s.Elements})
		}
		*all.families.At(f) = &whole
	}
	return &all, some
}

// fixedSet returns the fixed set with a name.
func fixedSet(name string) (id rules.SetID, ok bool) {
	for id := range rules.SetID(len(rules.Fragment{}.Elements)) {
		if id.String() == name {
			return id, true
		}
	}
	return 0, false
}

// purgeAll adds the search of all remaining affinity maps for removed backends.
func (p *Plan) purgeAll() {
	p.purgesAll = true
	for f, c := range ir.Present(p.families) {
		if c.purge = nil; c.table.create {
			continue // all maps are new
		}
		want := p.want().Of(f)
		keep := remembered(want)
		for i := range want.Sets {
			s := &want.Sets[i]
			if s.Timeout > 0 && !slices.ContainsFunc(c.sets.create, func(new *rules.Set) bool { return new.Name == s.Name }) {
				c.purge = append(c.purge, purge{set: s, keep: keep[s.Name]})
			}
		}
	}
}

// purges reports whether affinity maps may contain removed backends.
func (p *Plan) purges() bool {
	for _, c := range ir.Present(p.families) {
		if len(c.purge) > 0 {
			return true
		}
	}
	return false
}

// Empty reports whether the Plan has no changes.
func (p *Plan) Empty() bool {
	for _, c := range ir.Present(p.families) {
		if !c.empty() {
			return false
		}
	}
	return !p.purgesAll
}

// Gone returns the missing tables.
func (p *Plan) Gone() (all []apply.Gone) {
	for _, c := range ir.Present(p.families) {
		if table := c.family.NFT() + " " + rules.Table; c.table.create && !c.table.drop {
			all = append(all, apply.Gone{What: "table " + table, Within: table + " "})
		}
	}
	return all
}

// RemovedFrontends returns the frontends that exist and that the Plan removes. They are those of
// removed elements, unless an added element has the same frontend.
func (p *Plan) RemovedFrontends() []ir.Match {
	var removed []ir.Match
	for _, c := range ir.Present(p.families) {
		stay := map[ir.Match]bool{}
		for _, e := range c.sets.elements {
			for i := range e.added {
				stay[matchOf(e.set, &e.added[i].Key)] = true
			}
		}
		for _, e := range c.sets.elements {
			if !dispatches(e.set.Name) {
				continue
			}
			for i := range e.removed {
				if m := matchOf(e.set, &e.removed[i].Key); !stay[m] {
					removed = append(removed, m)
				}
			}
		}
	}
	slices.SortFunc(removed, ir.Match.Compare)
	return slices.Compact(removed)
}

// dispatches reports whether a set contains all frontends with endpoints, or all without.
func dispatches(set string) bool {
	switch set {
	case rules.ServiceIPs.String(), rules.ServicePorts.String(), rules.NoEndpointIPs.String(), rules.NoEndpointPorts.String():
		return true
	}
	return false
}

// matchOf returns the frontend in a key; zero if there is none.
func matchOf(s *rules.Set, k *rules.Key) ir.Match {
	switch {
	case len(s.Key) < 2 || s.Key[1] == rules.TypeAddr: // a hairpin connection
		return ir.Match{}
	case len(s.Key) > 3 && s.Key[1] == rules.TypePort: // backend first
		return ir.Match{Addr: k.Addr2, Protocol: k.Proto, Port: k.Port2}
	}
	return ir.Match{Addr: k.Addr, Protocol: k.Proto, Port: k.Port}
}

// ownersIn returns a function that finds the service ports of frontends in the comments of a
// Ruleset.
func ownersIn(r *rules.Ruleset) func(ir.Match) ir.ServicePort {
	var byMatch map[ir.Match]ir.ServicePort // nil until needed
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

// serviceOf returns the Service of an element; zero if it is shared.
func (c *change) serviceOf(s *rules.Set, e *rules.Element) ir.Name {
	if e.Frontend != nil {
		return e.Frontend.Port.Service
	}
	if s.Port != (ir.ServicePort{}) {
		return s.Port.Service
	}
	if m := matchOf(s, &e.Key); m.Port != 0 {
		return c.owners(m).Service
	}
	return ir.Name{}
}

// Operations yields the changes in the order of commit.
func (p *Plan) Operations(yield func(apply.Operation) bool) {
	p.operations(operations{names: true}, yield)
}

// Differences yields the Operations with rules, elements and declarations as nft lists them.
func (p *Plan) Differences(yield func(apply.Operation) bool) {
	p.operations(operations{names: true, texts: true}, yield)
}

// Total counts the Operations.
func (p *Plan) Total() (total apply.Count) {
	p.operations(operations{}, func(op apply.Operation) bool {
		total.Add(op.Verb)
		return true
	})
	return total
}

func (p *Plan) operations(ops operations, yield func(apply.Operation) bool) {
	ops.Emitter = &apply.Emitter{Yield: yield}
	for _, c := range ir.Present(p.families) {
		ops.change, ops.prefix = c, c.family.NFT()+" "+rules.Table
		ops.all()
	}
}

// keeping returns the Plan without the removal of some objects.
func (p *Plan) keeping(objects map[string]bool) *Plan {
	rest := *p
	rest.families = ir.PerFamily[*change]{}
	for f, c := range ir.Present(p.families) {
		some := *c
		chain := func(ch *rules.Chain) bool { return objects["chain "+ch.Name] }
		for _, list := range []*[]*rules.Chain{&some.chains.create, &some.chains.flush, &some.chains.fill, &some.chains.removed} {
			*list = except(*list, chain)
		}
		set := func(s *rules.Set) bool { return objects["set "+s.Name] }
		some.sets.create, some.sets.removed = except(c.sets.create, set), except(c.sets.removed, set)
		some.table.removed = except(c.table.removed, func(o rules.Object) bool { return objects[o.Kind.String()+" "+o.Name] })
		*rest.families.At(f) = &some
	}
	return &rest
}

// except returns a copy of a list without some items.
func except[T any](all []T, omit func(T) bool) []T { return slices.DeleteFunc(slices.Clone(all), omit) }

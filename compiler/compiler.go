package compiler

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Compile returns the Programs of one node and the diagnostics of the snapshot.
// cfg must be valid and complete.
func Compile(cfg *config.Config, snap *snapshot.Snapshot, facts Facts) (ir.Programs, diag.List) {
	c := New(cfg, snap, facts)
	return c.Programs(), c.Diagnostics()
}

// CompileNodes compiles for several nodes in sequence, and does the
// node-independent work once. It calls yield with the Programs and diagnostics of
// nodes[i], in order, until yield returns false.
func CompileNodes(cfg *config.Config, snap *snapshot.Snapshot, nodes []Facts,
	yield func(i int, programs ir.Programs, diags diag.List) bool) {
	shared := newCluster(cfg, snap)
	all := snap.Services()
	services := make([]*service, len(all))
	ir.Parallel(len(all), func(i int) { services[i] = shared.service(all[i], ir.PerFamily[excess]{}) })
	for i, facts := range nodes {
		c := newCompiler(cfg, shared, facts)
		c.fill(all, func(j int) *service { return services[j] })
		if !yield(i, c.Programs(), c.Diagnostics()) {
			return
		}
	}
}

// Compiler compiles for one node and keeps the result. The cost of an update
// depends only on the number of changed Services. The node's facts and the
// configuration are fixed: a change of either requires a new Compiler. It is not
// safe for concurrent use.
type Compiler struct {
	cluster   *cluster
	targets   ir.PerFamily[*nodeTarget]
	claims    ir.PerFamily[*claims]
	shared    ir.PerFamily[shared] // nil if shared endpoints are harmless
	budgets   ir.PerFamily[*budget]
	slots     slots
	node      nodeInput
	nodeDiags diag.List
	order     entries
}

// entry is a Service in a Compiler.
type entry struct {
	name     ir.Name
	created  time.Time
	compiled ir.PerFamily[*ir.Service] // each Service as if it were alone; nil if not in the family
	final    ir.PerFamily[*ir.Service] // after the conflicts and slots passes
	costs    ir.PerFamily[cost]
	over     ir.PerFamily[excess]
	tables   *tables
	noRoom   bool // its tables do not fit
	diags    diag.List
	lost     ir.PerFamily[diag.List] // from the conflicts pass
}

// diagnostics returns the Service's diagnostics, sorted.
func (e *entry) diagnostics() diag.List {
	tabled := e.tabled()
	if len(e.diags)+len(tabled)+len(e.lost.IPv4)+len(e.lost.IPv6) == 0 {
		return nil
	}
	list := slices.Concat(e.diags, tabled, e.lost.IPv4, e.lost.IPv6)
	list.Sort()
	return list
}

// New compiles a snapshot. Update reads the same snapshot again.
func New(cfg *config.Config, snap *snapshot.Snapshot, facts Facts) *Compiler {
	c := newCompiler(cfg, newCluster(cfg, snap), facts)
	all := snap.Services()
	c.fill(all, func(i int) *service { return c.cluster.service(all[i], ir.PerFamily[excess]{}) })
	return c
}

func newCompiler(cfg *config.Config, shared *cluster, facts Facts) *Compiler {
	c := &Compiler{cluster: shared, node: newNodeInput(shared.snap, facts)}
	c.node.cfg, c.node.mode = cfg, shared.mode
	c.nodeDiags = c.node.nodeDiags()
	for _, f := range ir.Families() {
		node, diags := nodePass(c.node, f)
		c.nodeDiags.Add(diags...)
		*c.targets.At(f) = newTarget(shared, f, &node, &facts)
	}
	c.nodeDiags.Sort()
	return c
}

// NodeDiffers reports whether other facts change the ir.Node of a Program, so
// that a new Compiler is required.
func (c *Compiler) NodeDiffers(facts Facts) bool {
	in := c.node
	in.facts = facts
	for f, t := range c.targets.All() {
		if node, _ := nodePass(in, f); !reflect.DeepEqual(&node, t.node) {
			return true
		}
	}
	return false
}

// SetHNSEndpoints sets the addresses of the node's own pods that HNS reports
// (Facts.HNSEndpoints). These endpoints are local, whatever their nodeName
// (WIN-31). It reports whether an endpoint became local or stopped being local,
// so that a new Compiler is required.
func (c *Compiler) SetHNSEndpoints(now map[netip.Addr]struct{}) (moves bool) {
	before := c.node.facts.HNSEndpoints
	c.node.facts.HNSEndpoints = now
	for _, t := range c.targets.All() {
		if t.node.HNS != nil {
			t.hosted = now
		}
	}
	if !c.cluster.caps.Has(ir.OneBackendPort) {
		return false
	}
	for _, svc := range c.cluster.snap.Services() {
		for _, slice := range c.cluster.snap.Slices(svc.Name) {
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				if e.NodeName != "" && e.NodeName == c.node.facts.NodeName {
					continue
				}
				addr := e.Addr.Unmap()
				_, was := before[addr]
				if _, is := now[addr]; was != is {
					return true
				}
			}
		}
	}
	return false
}

// fill compiles all Services, sorted by name. parse returns service i.
func (c *Compiler) fill(all []*snapshot.Service, parse func(i int) *service) {
	entries := make([]entry, len(all))
	ir.Parallel(len(all), func(i int) { c.compile(&entries[i], all[i], parse(i)) })
	c.order = make([]*entry, 0, len(all))
	c.slots = slots{wanted: map[*entry]bool{}}
	for i := range entries {
		c.order = append(c.order, &entries[i])
	}
	for _, f := range ir.Families() {
		b := newBudget(f)
		*c.budgets.At(f) = b
		for _, e := range c.order {
			b.replace(e, cost{})
		}
	}
	c.settleBudgets(func(e, next *entry) { *e = *next })
	for _, e := range c.order {
		c.slots.add(e)
	}
	c.slots.settle(func(*entry) {})
	for _, f := range ir.Families() {
		n := 0
		for _, e := range c.order {
			count(&n, e.compiled.Of(f) != nil)
		}
		claims := newClaims(&c.node, c.targets.Of(f).node, n)
		*c.claims.At(f) = claims
		shared := c.newShared(f)
		*c.shared.At(f) = shared
		for _, e := range c.order {
			claims.add(e, e.compiled.Of(f))
			shared.replace(e, nil, e.compiled.Of(f), func(*entry) {})
		}
		claims.settle(func(*entry) {})
		for _, e := range c.order {
			c.resolve(e, f)
		}
	}
}

// compile fills an empty entry with one Service as if it were alone. s is nil for
// an ignored Service.
func (c *Compiler) compile(e *entry, svc *snapshot.Service, s *service) {
	e.name = svc.Name
	if !c.node.facts.Files { // which state any time
		e.created = svc.Created
	}
	if s == nil {
		return
	}
	e.costs, e.tables, e.diags = s.costs, s.tables, s.diags
	for f, t := range c.targets.All() {
		*e.compiled.At(f) = t.compile(s)
	}
}

func (c *Compiler) resolve(e *entry, f ir.Family) {
	final, lost := c.claims.Of(f).conflictsPass(e, e.compiled.Of(f))
	*e.final.At(f), *e.lost.At(f) = slotsPass(e, final), lost
	e.lost.At(f).Add(c.shared.Of(f).finding(e, e.compiled.Of(f))...)
}

// Programs returns the current Programs.
func (c *Compiler) Programs() ir.Programs {
	programs := c.WithoutServices()
	for f, p := range programs.All() {
		n := 0
		for _, e := range c.order {
			count(&n, e.final.Of(f) != nil)
		}
		p.Services = make([]ir.Service, 0, n)
		for _, e := range c.order {
			if s := e.final.Of(f); s != nil {
				p.Services = append(p.Services, *s)
			}
		}
	}
	return programs
}

// WithoutServices returns the current Programs without their Services. Its cost
// does not depend on the number of Services.
func (c *Compiler) WithoutServices() (programs ir.Programs) {
	for f, t := range c.targets.All() {
		*programs.At(f) = &ir.Program{Family: f, Node: *t.node}
	}
	return programs
}

// Findings maps each Service to its diagnostics. The zero Name holds those of the
// node. Each list is sorted.
type Findings map[ir.Name]diag.List

// List returns all diagnostics, sorted.
func (f Findings) List() (list diag.List) {
	for _, of := range f {
		list.Add(of...)
	}
	list.Sort()
	return list
}

// Findings returns all diagnostics by Service.
func (c *Compiler) Findings() Findings {
	all := Findings{}
	if len(c.nodeDiags) > 0 {
		all[ir.Name{}] = c.nodeDiags
	}
	for _, e := range c.order {
		if list := e.diagnostics(); len(list) > 0 {
			all[e.name] = list
		}
	}
	return all
}

// Diagnostics returns all diagnostics, sorted.
func (c *Compiler) Diagnostics() diag.List { return c.Findings().List() }

// Update compiles the named Services again: those that were added, changed or
// deleted in the snapshot, or whose slices were. It returns the changes of each
// Program by name. These are the named Services that differ, and others that won
// or lost an address or a table. It also returns the diagnostics of each of
// these, which may be none. The cost is proportional to their number.
func (c *Compiler) Update(dirty []ir.Name) (changes ir.Changes, findings Findings) {
	findings = make(Findings, len(dirty))
	touched := map[*entry]bool{}
	touch := func(e *entry) { touched[e] = true }
	for _, name := range dirty {
		e := c.order.entry(name)
		touch(e)
		c.take(e, c.next(e), touch)
	}
	c.settleBudgets(func(e, next *entry) {
		touch(e)
		c.take(e, next, touch)
	})
	for _, claims := range c.claims.All() {
		claims.settle(touch)
	}
	c.slots.settle(touch)
	for e := range touched {
		for _, f := range ir.Families() {
			old := e.final.Of(f)
			c.resolve(e, f)
			if now := e.final.Of(f); !reflect.DeepEqual(old, now) {
				of := changes.At(f)
				*of = append(*of, ir.Change{Name: e.name, Old: old, New: now})
			}
		}
		findings[e.name] = e.diagnostics()
		if c.cluster.snap.Service(e.name) == nil {
			c.order.forget(e.name)
		}
	}
	for _, of := range changes.All() {
		slices.SortFunc(of, func(a, b ir.Change) int { return a.Name.Compare(b.Name) })
	}
	return changes, findings
}

// next compiles the Service of an entry, or returns an empty entry.
func (c *Compiler) next(e *entry) *entry {
	next := entry{name: e.name, over: e.over}
	if svc := c.cluster.snap.Service(e.name); svc != nil {
		c.compile(&next, svc, c.cluster.service(svc, e.over))
	}
	return &next
}

// settleBudgets compiles the Services again that are now over a limit, or no
// longer.
func (c *Compiler) settleBudgets(take func(e, next *entry)) {
	again := map[*entry]bool{}
	for _, b := range c.budgets.All() {
		b.settle(func(e *entry) { again[e] = true })
	}
	for e := range again {
		take(e, c.next(e))
	}
}

// take replaces an entry by a new version.
func (c *Compiler) take(e, next *entry, touch func(*entry)) {
	for f, shared := range c.shared.All() {
		shared.replace(e, e.compiled.Of(f), next.compiled.Of(f), touch)
	}
	c.replace(e, next)
}

// replace makes e equal to next, and updates its claims and slots if they differ.
func (c *Compiler) replace(e, next *entry) {
	var moves ir.PerFamily[bool]
	for f, claims := range c.claims.All() {
		if !e.created.Equal(next.created) || !sameClaims(e.compiled.Of(f), next.compiled.Of(f)) {
			*moves.At(f) = true
			claims.remove(e, e.compiled.Of(f))
		}
	}
	resize := e.tables.need() != next.tables.need() || !e.created.Equal(next.created)
	if resize {
		c.slots.remove(e)
	}
	costs, aged := e.costs, !e.created.Equal(next.created)
	e.created, e.compiled, e.costs, e.tables, e.diags = next.created, next.compiled, next.costs, next.tables, next.diags
	for f, b := range c.budgets.All() {
		if aged || costs.Of(f) != e.costs.Of(f) {
			b.replace(e, costs.Of(f))
		}
	}
	if resize {
		c.slots.add(e)
	}
	for f, claims := range c.claims.All() {
		if moves.Of(f) {
			claims.add(e, e.compiled.Of(f))
		}
	}
}

// entries are sorted by name.
type entries []*entry

func (all entries) find(name ir.Name) (int, bool) {
	return slices.BinarySearchFunc(all, name, func(e *entry, n ir.Name) int { return e.name.Compare(n) })
}

// entry returns the entry of a Service, and adds one if necessary.
func (all *entries) entry(name ir.Name) *entry {
	i, found := all.find(name)
	if !found {
		*all = slices.Insert(*all, i, &entry{name: name})
	}
	return (*all)[i]
}

func (all *entries) forget(name ir.Name) {
	if i, found := all.find(name); found {
		*all = slices.Delete(*all, i, i+1)
	}
}

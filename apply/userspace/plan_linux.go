package userspace

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	tables "github.com/proxyc/proxyc/render/iptables"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Plan is a set of changes to listeners and rules.
type Plan struct {
	apply.Desired
	dataplane *Dataplane
	families  ir.PerFamily[*familyPlan]
	have      tables.Rulesets // families that are nil have no rule changes
	rules     apply.Plan
}

// familyPlan is the Plan of one family.
type familyPlan struct {
	family    ir.Family
	listeners []*rules.Listener // to be opened or updated, by service port
	verbs     map[ir.ServicePort]apply.Verb
	removed   []removedListener
	unserved  []ir.ServicePort

	next   *lowered                    // final state, except for others
	others map[ir.Name]*rules.Fragment // of changed Services; nil if removed
	ports  rules.Ports                 // of others
}

// removedListener is a listener to close.
type removedListener struct {
	Key
	at netip.AddrPort
}

// addRemoved adds a listener to close.
func (f *familyPlan) addRemoved(d *Dataplane, k Key) {
	at, _ := d.proxy.At(k)
	f.removed = append(f.removed, removedListener{k, at})
}

// add adds a listener to open or update.
func (f *familyPlan) add(d *Dataplane, l *rules.Listener) {
	switch open, same := d.proxy.Status(f.family, l); {
	case !open && d.readOnly && InUse(f.family, l): // presumably the daemon's
	case !open:
		ir.SetIn(&f.verbs, l.Port, apply.Add)
	case !same:
		ir.SetIn(&f.verbs, l.Port, apply.Change)
	}
	f.listeners = append(f.listeners, l)
}

// planChanges plans the changes of a family.
func planChanges(d *Dataplane, f ir.Family, now *lowered, changes []ir.Change) *familyPlan {
	fp := &familyPlan{family: f, next: now, others: map[ir.Name]*rules.Fragment{}, ports: rules.Ports{}}
	free := sync.OnceValue(func() *rules.PortRange { return freePorts(d.proxy, f, &now.node, changes) })
	for _, c := range changes {
		wanted := map[ir.ServicePort]bool{}
		if c.New == nil {
			fp.others[c.Name] = nil
		} else {
			for i := range c.New.Frontends {
				name := c.New.Frontends[i].Port
				if fp.ports[name] != 0 {
					continue
				}
				n, ok := now.ports[name]
				if !ok {
					n, ok = free().Assign(name)
				}
				if ok {
					fp.ports[name] = n
				} else if !slices.Contains(fp.unserved, name) {
					fp.unserved = append(fp.unserved, name)
				}
			}
			x := now.lower.LowerService(c.New, fp.ports)
			fp.others[c.Name] = &x
			for i := range x.Listeners {
				wanted[x.Listeners[i].Port] = true
				fp.add(d, &x.Listeners[i])
			}
		}
		old := now.fragments[c.Name]
		for i := range old.Listeners {
			if name := old.Listeners[i].Port; !wanted[name] {
				fp.addRemoved(d, Key{Family: f, Port: name})
			}
		}
	}
	return fp
}

// alternatives yields alternative ports for a listener: any (0), or those of portRange in order.
func (f *familyPlan) alternatives(l *rules.Listener) func(func(uint16) bool) {
	first, last, others := rules.ProxyPorts(&f.next.node)
	return func(yield func(uint16) bool) {
		if others {
			yield(0)
			return
		}
		free := rules.NewPortRange(first, last)
		for _, other := range f.listeners {
			free.Take(other.Listen.Port())
		}
		for _, n := range f.next.ports {
			free.Take(n)
		}
		for n, ok := free.Next(l.Listen.Port()); ok && yield(n); n, ok = free.Next(n) {
		}
	}
}

func (f *familyPlan) sort() {
	slices.SortFunc(f.listeners, func(a, b *rules.Listener) int { return a.Port.Compare(b.Port) })
	slices.SortFunc(f.removed, func(a, b removedListener) int { return a.Port.Compare(b.Port) })
	slices.SortFunc(f.unserved, ir.ServicePort.Compare)
}

// rulesDiffer reports whether the changes affect any rule.
func (f *familyPlan) rulesDiffer(now *lowered) bool {
	for name, x := range f.others {
		old := now.fragments[name]
		if x == nil {
			x = &rules.Fragment{}
		}
		if !old.SameRules(x) {
			return true
		}
	}
	return false
}

// difference computes the Plan's rules.
func (p *Plan) difference() {
	var want tables.Rulesets
	for f, of := range ir.Present(p.families) {
		if p.have.Of(f) != nil || p.Full {
			*want.At(f) = of.next.ruleset(of.others)
		}
	}
	p.rules = p.dataplane.rules.Difference(p.have, want)
}

// service returns the desired state of a Service, or nil if it is removed.
func (p *Plan) service(f ir.Family, name ir.Name) *ir.Service {
	if !p.Full {
		for _, c := range p.Changes.Of(f) {
			if c.Name == name {
				return c.New
			}
		}
		return nil
	}
	program := p.Programs.Of(f)
	i, ok := program.Find(name)
	if !ok {
		return nil
	}
	return &program.Services[i]
}

// revised returns the plan with rules for listeners that use other ports.
func (f *familyPlan) revised(moved rules.Ports, service func(ir.Family, ir.Name) *ir.Service) *familyPlan {
	own := *f
	f = &own
	ports := maps.Clone(f.ports)
	if f.others != nil {
		f.ports, f.others = ports, maps.Clone(f.others)
	} else {
		next := *f.next
		next.ports, next.fragments = maps.Clone(next.ports), maps.Clone(next.fragments)
		f.next, ports = &next, next.ports
	}
	again := map[ir.Name]bool{}
	for name, n := range moved {
		ports[name] = n
		again[name.Service] = true
	}
	for name := range again {
		s := service(f.family, name)
		if s == nil {
			continue
		}
		if x := f.next.lower.LowerService(s, ports); f.others != nil {
			f.others[name] = &x
		} else {
			f.next.fragments[name] = x
		}
	}
	return f
}

// Empty reports whether the Plan has no changes.
func (p *Plan) Empty() bool {
	for _, f := range ir.Present(p.families) {
		if len(f.verbs)+len(f.removed) > 0 {
			return false
		}
	}
	return p.rules.Empty()
}

// Operations yields added and changed listeners, then rules, then removed listeners.
func (p *Plan) Operations(yield func(apply.Operation) bool) { p.all(p.rules.Operations, yield) }

// Differences yields the Operations with the actual and the desired rules.
func (p *Plan) Differences(yield func(apply.Operation) bool) { p.all(p.rules.Differences, yield) }

func (p *Plan) all(ofRules func(func(apply.Operation) bool), yield func(apply.Operation) bool) {
	out := &apply.Emitter{Yield: yield}
	emit := func(op apply.Operation) bool {
		out.Emit(op)
		return !out.Stopped
	}
	p.opened(emit)
	ofRules(emit)
	for _, f := range ir.Present(p.families) {
		for _, l := range f.removed {
			out.Emit(RemoveOperation(l.Key, l.at))
		}
	}
}

// opened yields added and changed listeners.
func (p *Plan) opened(yield func(apply.Operation) bool) {
	for _, f := range ir.Present(p.families) {
		for _, l := range f.listeners {
			if verb, some := f.verbs[l.Port]; some && !yield(Operation(verb, l)) {
				return
			}
		}
	}
}

// RemovedFrontends returns those of the rules. Flows of removed listeners end with the Proxy's
// sockets.
func (p *Plan) RemovedFrontends() []ir.Match { return p.rules.RemovedFrontends() }

// freePorts returns the proxy ports of a family that are available to changed Services: no listener
// uses them, and none of these Services has them as a node port.
func freePorts(p *Proxy, f ir.Family, node *ir.Node, changes []ir.Change) *rules.PortRange {
	first, last, _ := rules.ProxyPorts(node)
	free := rules.NewPortRange(first, last)
	for _, k := range p.Keys() {
		if at, ok := p.At(k); ok && k.Family == f {
			free.Take(at.Port())
		}
	}
	for _, c := range changes {
		if c.New == nil {
			continue
		}
		for i := range c.New.Frontends {
			if m := c.New.Frontends[i].Match; m.IsNodePort() {
				free.Take(m.Port)
			}
		}
	}
	return free
}

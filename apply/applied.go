package apply

import (
	"maps"
	"slices"
	"sync"

	"github.com/proxyc/proxyc/ir"
)

// Applied contains the Programs that a Dataplane last applied. The cost of a change does not depend
// on the number of Services. Any goroutine may read it while it changes.
type Applied struct {
	mu       sync.Mutex
	node     ir.Programs // without their Services
	services ir.PerFamily[map[ir.Name]*ir.Service]
}

// Desired is the state after a Plan's commit: the Programs if Full is set, otherwise the applied ones
// with Changes.
type Desired struct {
	Full     bool
	Programs ir.Programs
	Changes  ir.Changes
}

// Before returns the Programs before the commit, with at least the Services that it changes.
func (d *Desired) Before(applied *Applied) (programs ir.Programs) {
	if d.Full {
		return applied.Programs()
	}
	for f, changes := range d.Changes.All() {
		p := &ir.Program{Family: f}
		for _, c := range changes {
			if c.Old != nil {
				p.Services = append(p.Services, *c.Old)
			}
		}
		*programs.At(f) = p
	}
	return programs
}

// Take records a committed state.
func (a *Applied) Take(d Desired) {
	if d.Full {
		a.Replace(d.Programs)
	} else {
		a.Change(d.Changes)
	}
}

// Replace records that exactly these Programs are applied.
func (a *Applied) Replace(programs ir.Programs) {
	var node ir.Programs
	var services ir.PerFamily[map[ir.Name]*ir.Service]
	for f, p := range ir.Present(programs) {
		*node.At(f) = &ir.Program{Family: f, Node: p.Node}
		of := make(map[ir.Name]*ir.Service, len(p.Services))
		for i := range p.Services {
			of[p.Services[i].Name] = &p.Services[i]
		}
		*services.At(f) = of
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node, a.services = node, services
}

// Change records applied changes.
func (a *Applied) Change(changes ir.Changes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for f, of := range changes.All() {
		services := a.services.Of(f)
		for _, c := range of {
			if c.New == nil {
				delete(services, c.Name)
			} else {
				services[c.Name] = c.New
			}
		}
	}
}

// Node returns the Programs without their Services.
func (a *Applied) Node() ir.Programs {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}

// Has reports whether a service port has frontends, or a Service if only that is set. Zero is that of
// packets for no Service.
func (a *Applied) Has(p ir.ServicePort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, of := range a.services.All() {
		if s := of[p.Service]; s != nil && (p == ir.ServicePort{Service: s.Name} || slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Port == p })) {
			return true
		}
	}
	return p == ir.ServicePort{}
}

// From returns the changes with Old set to the Services that were applied, as
// Dataplane.PlanChanges requires. The result shares no memory with changes but the Services.
func (a *Applied) From(changes ir.Changes) (from ir.Changes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for f, of := range changes.All() {
		if len(of) == 0 {
			continue
		}
		services := a.services.Of(f)
		list := make([]ir.Change, len(of))
		for i, c := range of {
			list[i] = ir.Change{Name: c.Name, Old: services[c.Name], New: c.New}
		}
		*from.At(f) = list
	}
	return from
}

// Programs returns the Programs, with their Services by name.
func (a *Applied) Programs() ir.Programs {
	return a.Some(func(ir.Family, *ir.Service) bool { return true })
}

// Some returns the Programs with only the Services that keep selects, by name.
func (a *Applied) Some(keep func(ir.Family, *ir.Service) bool) (programs ir.Programs) {
	node, all := a.all()
	for f, of := range ir.Present(node) {
		services := slices.DeleteFunc(all.Of(f), func(s *ir.Service) bool { return !keep(f, s) })
		slices.SortFunc(services, func(a, b *ir.Service) int { return a.Name.Compare(b.Name) })
		p := *of
		p.Services = make([]ir.Service, len(services))
		for i, s := range services {
			p.Services[i] = *s
		}
		*programs.At(f) = &p
	}
	return programs
}

// all returns everything without sorting, since Change waits for it.
func (a *Applied) all() (node ir.Programs, services ir.PerFamily[[]*ir.Service]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for f := range ir.Present(a.node) {
		*services.At(f) = slices.AppendSeq(make([]*ir.Service, 0, len(a.services.Of(f))), maps.Values(a.services.Of(f)))
	}
	return a.node, services
}

// Without returns the Programs without refused Services.
func Without(programs ir.Programs, refused []Refusal) (rest ir.Programs) {
	if len(refused) == 0 {
		return programs
	}
	out := make(map[ir.Name]bool, len(refused))
	for _, r := range refused {
		out[r.Service] = true
	}
	for f, p := range ir.Present(programs) {
		q := *p
		q.Services = slices.DeleteFunc(slices.Clone(p.Services), func(s ir.Service) bool { return out[s.Name] })
		*rest.At(f) = &q
	}
	return rest
}

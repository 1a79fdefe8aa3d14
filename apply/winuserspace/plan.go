package winuserspace

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Plan is a set of changes to addresses and listeners.
type Plan struct {
	desired apply.Desired
	found   *state   // state read by Compare; nil to use the known one
	want    *desired // of a full Plan
	// services are the listeners of changed Services.
	services ir.PerFamily[map[ir.Name][]rules.Listener]

	closed      []userspace.Key
	add, remove []netip.Addr
	listeners   []listenerChange
}

// listenerChange is a listener to open or update.
type listenerChange struct {
	family ir.Family
	*rules.Listener
	verb apply.Verb
}

func (l listenerChange) key() userspace.Key { return userspace.KeyOf(l.family, l.Listener) }

// listeners plans the listeners of a Service. A listener on a missing address has to be reopened.
func (d *Dataplane) listeners(p *Plan, f ir.Family, s *state, listeners []rules.Listener) {
	for i := range listeners {
		l := &listeners[i]
		there := !vip(l).IsValid() || s.has(vip(l))
		switch open, same := d.proxy.Status(f, l); {
		case !open && d.o.ReadOnly && there && userspace.InUse(f, l): // presumably the daemon's
		case !open:
			p.listeners = append(p.listeners, listenerChange{f, l, apply.Add})
		case !same, !there:
			p.listeners = append(p.listeners, listenerChange{f, l, apply.Change})
		}
	}
}

// full plans all changes to the desired state.
func (d *Dataplane) full(s *state, w *desired) *Plan {
	p := &Plan{want: w}
	keys := map[userspace.Key]bool{}
	for f, of := range w.listeners.All() {
		for _, listeners := range of {
			for i := range listeners {
				keys[userspace.KeyOf(f, &listeners[i])] = true
			}
			d.listeners(p, f, s, listeners)
		}
	}
	for _, k := range d.proxy.Keys() {
		if !keys[k] {
			p.closed = append(p.closed, k)
		}
	}
	for a := range w.users {
		if !s.has(a) {
			p.add = append(p.add, a)
		}
	}
	for a := range s.added {
		if s.ours(a) && w.users[a] == nil {
			p.remove = append(p.remove, a)
		}
	}
	p.sort()
	return p
}

// changes plans the changes of some Services only.
func (d *Dataplane) changes(s *state, w *desired, changes ir.Changes) *Plan {
	p := &Plan{}
	for f, of := range changes.All() {
		n := w.nodes.Of(f)
		if n == nil || len(of) == 0 {
			continue
		}
		next := make(map[ir.Name][]rules.Listener, len(of))
		*p.services.At(f) = next
		keys, needed, touched := map[userspace.Key]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}
		for _, c := range of {
			next[c.Name] = nil
			if c.New != nil {
				next[c.Name] = n.Portals(c.New)
			}
			for i := range next[c.Name] {
				keys[userspace.KeyOf(f, &next[c.Name][i])] = true
			}
			for _, a := range vips(next[c.Name]) {
				needed[a], touched[a] = true, true
			}
			for _, a := range vips(w.listeners.Of(f)[c.Name]) {
				touched[a] = true
			}
			d.listeners(p, f, s, next[c.Name])
		}
		for _, c := range of {
			for i := range w.listeners.Of(f)[c.Name] {
				if k := userspace.KeyOf(f, &w.listeners.Of(f)[c.Name][i]); !keys[k] {
					p.closed = append(p.closed, k)
				}
			}
		}
		for a := range touched {
			for name := range w.users[a] {
				if _, changes := next[name]; !changes {
					needed[a] = true
				}
			}
			switch {
			case needed[a] && !s.has(a):
				p.add = append(p.add, a)
			case !needed[a] && s.ours(a):
				p.remove = append(p.remove, a)
			}
		}
	}
	p.sort()
	return p
}

func (p *Plan) sort() {
	slices.SortFunc(p.add, netip.Addr.Compare)
	slices.SortFunc(p.remove, netip.Addr.Compare)
	slices.SortFunc(p.closed, func(a, b userspace.Key) int {
		if a.Family != b.Family {
			return int(a.Family) - int(b.Family)
		}
		return a.Compare(b)
	})
	slices.SortFunc(p.listeners, func(a, b listenerChange) int {
		if a.family != b.family {
			return int(a.family) - int(b.family)
		}
		return a.key().Compare(b.key())
	})
}

// Empty reports whether the Plan has no changes.
func (p *Plan) Empty() bool {
	return len(p.closed)+len(p.add)+len(p.listeners)+len(p.remove) == 0
}

// Operations yields removed listeners, added addresses, added or changed listeners, and removed
// addresses.
func (p *Plan) Operations(yield func(apply.Operation) bool) {
	for _, k := range p.closed {
		if !yield(apply.Operation{Verb: apply.Remove, Object: "listener " + k.At.String() + "/" + k.Port.Protocol.String(), Service: k.Port.Service}) {
			return
		}
	}
	for _, a := range p.add {
		if !yield(apply.Operation{Verb: apply.Add, Object: "address " + a.String()}) {
			return
		}
	}
	for _, l := range p.listeners {
		op := apply.Operation{Verb: l.verb, Object: l.Object(), Service: l.Port.Service, Origin: l.Origin}
		for _, b := range l.Backends {
			op.Want = append(op.Want, "backend "+b.String())
		}
		if op.Want = apply.Lines(op.Want); !yield(op) {
			return
		}
	}
	for _, a := range p.remove {
		if !yield(apply.Operation{Verb: apply.Remove, Object: "address " + a.String()}) {
			return
		}
	}
}

// Differences yields the Operations, which are complete.
func (p *Plan) Differences(yield func(apply.Operation) bool) { p.Operations(yield) }

// RemovedFrontends returns nothing: flows of removed listeners end with the Proxy's sockets.
func (p *Plan) RemovedFrontends() []ir.Match { return nil }

// Without returns false: the caller plans again.
func (p *Plan) Without(map[string]bool) (apply.Plan, bool) { return nil, false }

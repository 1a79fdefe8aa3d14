package winuserspace

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Plan is a set of changes to addresses and listeners.
type Plan struct {
	desired apply.Desired
	want    *desired // of a full Plan

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

// difference plans the listeners of some keys, and some addresses.
func (d *Dataplane) difference(s *state, w *desired, keys sets.Set[userspace.Key], addrs sets.Set[netip.Addr]) *Plan {
	p := &Plan{}
	for _, k := range slices.SortedFunc(maps.Keys(keys), userspace.Key.Compare) {
		l := w.listeners[k]
		if l == nil {
			p.closed = append(p.closed, k)
			continue
		}
		exists := s.has(vip(l)) // otherwise the listener has to be reopened
		switch open, same := d.proxy.Status(k.Family, l); {
		case !open && d.o.ReadOnly && exists && userspace.InUse(k.Family, l): // presumably the daemon's
		case !open:
			p.listeners = append(p.listeners, listenerChange{k.Family, l, apply.Add})
		case !same, !exists:
			p.listeners = append(p.listeners, listenerChange{k.Family, l, apply.Change})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		switch required := w.users[a] > 0; {
		case required && !s.has(a):
			p.add = append(p.add, a)
		case !required && s.ours(a):
			p.remove = append(p.remove, a)
		}
	}
	return p
}

// Empty reports whether the Plan has no changes.
func (p *Plan) Empty() bool {
	return len(p.closed)+len(p.add)+len(p.listeners)+len(p.remove) == 0
}

// Operations yields removed listeners, added addresses, added or changed listeners, and removed
// addresses.
func (p *Plan) Operations(yield func(apply.Operation) bool) {
	var all []apply.Operation
	for _, k := range p.closed {
		all = append(all, userspace.RemoveOperation(k, k.At))
	}
	for _, a := range p.add {
		all = append(all, apply.Operation{Verb: apply.Add, Object: "address " + a.String()})
	}
	for _, l := range p.listeners {
		all = append(all, userspace.Operation(l.verb, l.Listener))
	}
	for _, a := range p.remove {
		all = append(all, apply.Operation{Verb: apply.Remove, Object: "address " + a.String()})
	}
	slices.Values(all)(yield)
}

// Differences yields the Operations, which are complete.
func (p *Plan) Differences(yield func(apply.Operation) bool) { p.Operations(yield) }

// RemovedFrontends returns nothing: flows of removed listeners end with the Proxy's sockets.
func (p *Plan) RemovedFrontends() []ir.Match { return nil }

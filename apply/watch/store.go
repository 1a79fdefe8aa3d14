package watch

import (
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Store is a Snapshot that a source keeps up to date while another goroutine follows it. It is safe
// for concurrent use.
type Store struct {
	now     func() time.Time
	changed chan struct{} // contains one token while changes are pending

	mu         sync.Mutex
	snap       *snapshot.Snapshot
	dirty      map[ir.Name]struct{} // pending.Services as a set
	interfaces []compiler.Interface
	hosted     map[netip.Addr]struct{}
	pending    Changes
	taken      int     // changes of the last Follow, until Acknowledge
	arrival    Arrival // the change that update applies
}

// Changes are the changes since the last Follow.
type Changes struct {
	snapshot.Dirty
	// Interfaces are the node's current network interfaces; nil if they did not change.
	Interfaces []compiler.Interface
	// Hosted are the addresses of this node's pods that HNS reports; nil if they did not change.
	Hosted map[netip.Addr]struct{}
	// Since is when the oldest change arrived.
	Since time.Time
	// Triggers are the times of the changes that led to new EndpointSlices, if the slices contain
	// them; the oldest maxTriggers.
	Triggers []Trigger
	// Arrivals are the changes of Services and EndpointSlices, including deletions; the oldest
	// maxTriggers. A relist adds one for each object that differs.
	Arrivals []Arrival
	// ServiceEvents and EndpointEvents are the numbers of changes.
	ServiceEvents, EndpointEvents int
}

// Trigger is when a change of a pod or Service led to a new EndpointSlice: its annotation
// endpoints.kubernetes.io/last-change-trigger-time, which the network programming latency is
// measured from (SNAP-47).
type Trigger struct {
	Family  ir.Family
	Service ir.Name
	At      time.Time
}

// Arrival is when a change of a Service or its endpoints arrived.
type Arrival struct {
	Service ir.Name
	At      time.Time
	// Triggered is the trigger time of a new version of an EndpointSlice, or zero.
	Triggered time.Time
}

// maxTriggers bounds Triggers and Arrivals. They would grow without limit while the kernel rejects
// every change.
const maxTriggers = 10_000

// AddTriggers appends to Triggers, up to maxTriggers.
func (c *Changes) AddTriggers(more ...Trigger) {
	c.Triggers = append(c.Triggers, more[:min(len(more), maxTriggers-len(c.Triggers))]...)
}

// AddArrivals appends to Arrivals, up to maxTriggers.
func (c *Changes) AddArrivals(more ...Arrival) {
	c.Arrivals = append(c.Arrivals, more[:min(len(more), maxTriggers-len(c.Arrivals))]...)
}

// NewStore returns an empty Store.
func NewStore(now func() time.Time) *Store {
	return &Store{now: now, changed: make(chan struct{}, 1), snap: snapshot.New(), dirty: map[ir.Name]struct{}{}}
}

// Changed returns a channel that contains a token while changes are pending.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Follow calls f with the Snapshot and the changes since the last call. The Snapshot does not
// change until f returns. The changes are pending until Acknowledge is called.
func (s *Store) Follow(f func(*snapshot.Snapshot, Changes)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.changed:
	default:
	}
	s.taken += s.unread()
	c := s.pending
	c.Services = slices.SortedFunc(maps.Keys(s.dirty), ir.Name.Compare)
	s.pending, s.dirty = Changes{}, map[ir.Name]struct{}{} // a new map, since maps do not shrink
	f(s.snap, c)
}

// Acknowledge removes the changes of the last Follow from Pending. Call it after they are recorded
// elsewhere. Each change is then always reported by something.
func (s *Store) Acknowledge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = 0
}

// View calls f with the Snapshot, which f must not change. The Store is locked until f returns.
func (s *Store) View(f func(*snapshot.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.snap)
}

// Events returns the numbers of pending changes of Services and EndpointSlices.
func (s *Store) Events() (services, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending.ServiceEvents, s.pending.EndpointEvents
}

// Pending returns the number of Services with pending changes. A change of the node, of its
// interfaces or of its pods counts as one each.
func (s *Store) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken + s.unread()
}

// unread returns the number of changes since the last Follow.
func (s *Store) unread() int {
	n := len(s.dirty)
	for _, changed := range [...]bool{s.pending.Node, s.pending.Interfaces != nil, s.pending.Hosted != nil} {
		if changed {
			n++
		}
	}
	return n
}

// update changes the Snapshot and records the result. A change without dirty Services or node is
// not recorded.
func (s *Store) update(change func(*snapshot.Snapshot, *Changes) snapshot.Dirty) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.pending.ServiceEvents + s.pending.EndpointEvents
	s.arrival = Arrival{At: s.now()}
	d := change(s.snap, &s.pending)
	if d.Empty() {
		return
	}
	if s.pending.ServiceEvents+s.pending.EndpointEvents > before {
		for _, s.arrival.Service = range d.Services {
			s.pending.AddArrivals(s.arrival)
		}
	}
	s.pending.Node = s.pending.Node || d.Node
	for _, name := range d.Services {
		s.dirty[name] = struct{}{}
	}
	if services, endpoints, _ := s.snap.Count(); len(s.dirty) > services+endpoints+maxDeleted { // most no longer exist
		s.pending.Node = true
		clear(s.dirty)
	}
	if s.pending.Since.IsZero() {
		s.pending.Since = s.arrival.At
	}
	s.notify()
}

// maxDeleted is how many pending names may exceed the objects of the Snapshot. They belong to
// Services that were created and deleted before the next Follow. With more, the whole node is dirty.
const maxDeleted = 10_000

// notify signals that changes are pending.
func (s *Store) notify() {
	if s.pending.Since.IsZero() {
		s.pending.Since = s.now()
	}
	apply.Wake(s.changed)
}

// SetInterfaces sets the node's network interfaces.
func (s *Store) SetInterfaces(now []compiler.Interface) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reflect.DeepEqual(s.interfaces, now) {
		return
	}
	s.interfaces, s.pending.Interfaces = now, now
	s.notify()
}

// SetHosted sets the addresses of this node's pods that HNS reports.
func (s *Store) SetHosted(now map[netip.Addr]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosted != nil && maps.Equal(s.hosted, now) {
		return
	}
	s.hosted, s.pending.Hosted = now, now
	s.notify()
}

// Set adds or replaces a Service, EndpointSlice, Node or ServiceCIDR. It ignores objects that are
// equal to the stored ones.
func (s *Store) Set(obj any) {
	s.update(func(snap *snapshot.Snapshot, c *Changes) (d snapshot.Dirty) {
		switch obj := obj.(type) {
		case *snapshot.Service:
			if !reflect.DeepEqual(snap.Service(obj.Name), obj) {
				snap.SetService(obj)
				c.ServiceEvents++
				d.Services = []ir.Name{obj.Name}
			}
		case *snapshot.EndpointSlice:
			old := snap.Slice(obj.Name)
			if reflect.DeepEqual(old, obj) {
				return d
			}
			c.EndpointEvents++
			if old == nil || !old.Triggered.Equal(obj.Triggered) { // otherwise it is the time of an earlier change
				s.arrival.Triggered = obj.Triggered
			}
			if !obj.Triggered.IsZero() {
				c.AddTriggers(Trigger{ir.FamilyNamed(obj.AddressType), obj.Service, obj.Triggered})
			}
			d.Services = snap.SetSlice(obj)
		case *snapshot.Node:
			if d.Node = !reflect.DeepEqual(snap.Node(obj.Name), obj); d.Node {
				snap.SetNode(obj)
			}
		case *snapshot.ServiceCIDR:
			if d.Node = !reflect.DeepEqual(snap.ServiceCIDR(obj.Name), obj); d.Node {
				snap.SetServiceCIDR(obj)
			}
		}
		return d
	})
}

// Delete removes a Service, EndpointSlice or ServiceCIDR. Nodes are kept.
func (s *Store) Delete(kind string, name ir.Name) {
	s.update(func(snap *snapshot.Snapshot, c *Changes) (d snapshot.Dirty) {
		switch {
		case kind == "Service" && snap.Service(name) != nil:
			snap.DeleteService(name)
			c.ServiceEvents++
			d.Services = []ir.Name{name}
		case kind == "EndpointSlice" && snap.Slice(name) != nil:
			c.EndpointEvents++
			d.Services = snap.DeleteSlice(name)
		case kind == "ServiceCIDR" && snap.ServiceCIDR(name.Name) != nil:
			snap.DeleteServiceCIDR(name.Name)
			d.Node = true
		}
		return d
	})
}

// replace replaces all objects of a kind, and logs if most of them are gone. A valid list is
// applied immediately, even an empty one, as in kube-proxy. Stale rules would send traffic to pods
// of other Services, and a server that is restored from nothing has default/kubernetes within
// seconds.
func (s *Store) replace(log *slog.Logger, change func(*snapshot.Snapshot) snapshot.Dirty) {
	var before, after [2]int
	var d snapshot.Dirty
	s.update(func(snap *snapshot.Snapshot, c *Changes) snapshot.Dirty {
		before[0], before[1], _ = snap.Count()
		d = change(snap)
		after[0], after[1], _ = snap.Count()
		c.ServiceEvents += d.ServiceObjects
		c.EndpointEvents += d.SliceObjects
		return d
	})
	for i, gone := range [...]int{d.ServicesGone, d.SlicesGone} {
		if all := after[i] == 0 && gone > 0; all || gone >= massDeletion && gone > before[i]/2 {
			log.Warn("most objects were deleted at the same time: their rules are removed", "kind", [...]string{"Services", "EndpointSlices"}[i],
				"before", before[i], "removed", gone, "now", after[i])
		}
	}
}

// massDeletion is how many objects may disappear together before replace logs it, if others remain.
const massDeletion = 10

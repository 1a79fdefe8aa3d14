package watch

import (
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Store is a Snapshot that a source keeps up to date while somebody else
// follows it. It is safe for use by several goroutines.
type Store struct {
	now     func() time.Time
	changed chan struct{} // holds one token while there is something to take

	mu         sync.Mutex
	snap       *snapshot.Snapshot
	dirty      map[ir.Name]struct{} // pending.Services, each once
	interfaces []compiler.Interface
	hosted     map[netip.Addr]struct{}
	pending    Changes
	arriving   Arrival // what update is about
}

// Changes are what happened since they were last taken.
type Changes struct {
	snapshot.Dirty
	// Interfaces are the node's as they are now; nil if they did not change.
	Interfaces []compiler.Interface
	// Hosted are the addresses of the node's own pods that HNS has now; nil if they
	// did not change.
	Hosted map[netip.Addr]struct{}
	// Since is when the oldest of them arrived.
	Since time.Time
	// Triggers are what led to new EndpointSlices, as far as these tell; at most
	// mostTriggers, the oldest.
	Triggers []Trigger
	// Arrivals are the changes of Services and EndpointSlices, deletions included; at most mostTriggers,
	// the oldest. Of what was listed anew there is one for each object that differs.
	Arrivals []Arrival
	// ServiceEvents and EndpointEvents are how many changes there were.
	ServiceEvents, EndpointEvents int
}

// Trigger is when a change happened that led to a new EndpointSlice (SNAP-47).
type Trigger struct {
	Family ir.Family
	At     time.Time
}

// Arrival is when a change arrived that is about a Service.
type Arrival struct {
	Service ir.Name
	At      time.Time
	// Triggered is when it happened, as far as a new version of an EndpointSlice tells; else zero.
	Triggered time.Time
}

// mostTriggers is how many Triggers and Arrivals are kept while nothing comes in force: where
// the kernel refuses everything they would become more for as long as it does.
const mostTriggers = 10_000

// AddTriggers adds to Triggers, as long as there is room.
func (c *Changes) AddTriggers(more ...Trigger) {
	c.Triggers = append(c.Triggers, more[:min(len(more), mostTriggers-len(c.Triggers))]...)
}

// AddArrivals adds to Arrivals, as long as there is room.
func (c *Changes) AddArrivals(more ...Arrival) {
	c.Arrivals = append(c.Arrivals, more[:min(len(more), mostTriggers-len(c.Arrivals))]...)
}

// NewStore returns an empty Store.
func NewStore(now func() time.Time) *Store {
	return &Store{now: now, changed: make(chan struct{}, 1), snap: snapshot.New(), dirty: map[ir.Name]struct{}{}}
}

// Changed returns a channel that has a token when there is something to take.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Anew forgets what was taken, but for the Snapshot: whoever follows the Store next is told
// as the first one was. Nobody follows or changes it meanwhile.
func (s *Store) Anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.changed:
	default:
	}
	s.interfaces, s.hosted, s.pending = nil, nil, Changes{}
	clear(s.dirty)
}

// Follow hands what changed since the last call to f, and the Snapshot, which
// does not change until f returns.
func (s *Store) Follow(f func(*snapshot.Snapshot, Changes)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.changed:
	default:
	}
	c := s.pending
	c.Services = slices.SortedFunc(maps.Keys(s.dirty), ir.Name.Compare)
	s.pending, s.dirty = Changes{}, map[ir.Name]struct{}{} // a map never shrinks
	f(s.snap, c)
}

// View hands the Snapshot to f, which must not change it. Nobody else reads or
// changes it until f returns.
func (s *Store) View(f func(*snapshot.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.snap)
}

// Events returns how many changes of Services and EndpointSlices wait to be taken.
func (s *Store) Events() (services, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending.ServiceEvents, s.pending.EndpointEvents
}

// Pending returns how many Services wait to be taken. The node counts as one.
func (s *Store) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.dirty)
	if s.pending.Node {
		n++
	}
	return n
}

// update changes the Snapshot and notes what that made dirty. What makes
// nothing dirty leaves no trace.
func (s *Store) update(change func(*snapshot.Snapshot, *Changes) snapshot.Dirty) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.pending.ServiceEvents + s.pending.EndpointEvents
	s.arriving = Arrival{At: s.now()}
	d := change(s.snap, &s.pending)
	if d.Empty() {
		return
	}
	if s.pending.ServiceEvents+s.pending.EndpointEvents > before {
		for _, s.arriving.Service = range d.Services {
			s.pending.AddArrivals(s.arriving)
		}
	}
	s.mark(d)
	if s.pending.Since.IsZero() {
		s.pending.Since = s.arriving.At
	}
	s.notify()
}

// mostForgotten is how many names may wait beyond the objects of the Snapshot. They belong to
// Services that were created and deleted while nobody followed.
const mostForgotten = 10_000

// mark notes what differs. The names stay bounded: if most are those of Services that no longer
// exist, the whole node is dirty instead.
func (s *Store) mark(d snapshot.Dirty) {
	s.pending.Node = s.pending.Node || d.Node
	for _, name := range d.Services {
		s.dirty[name] = struct{}{}
	}
	services, endpoints, _ := s.snap.Count()
	if len(s.dirty) > services+endpoints+mostForgotten {
		s.pending.Node = true
		clear(s.dirty)
	}
}

// notify notes that there is something to take.
func (s *Store) notify() {
	if s.pending.Since.IsZero() {
		s.pending.Since = s.now()
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// SetInterfaces takes the node's network interfaces as they are now.
func (s *Store) SetInterfaces(now []compiler.Interface) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reflect.DeepEqual(s.interfaces, now) {
		return
	}
	s.interfaces, s.pending.Interfaces = now, now
	s.notify()
}

// SetHosted takes the addresses of the node's own pods that HNS has now.
func (s *Store) SetHosted(now map[netip.Addr]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosted != nil && maps.Equal(s.hosted, now) {
		return
	}
	s.hosted, s.pending.Hosted = now, now
	s.notify()
}

// SetService adds or replaces a Service. What is equal is no change; so it is
// with the others.
func (s *Store) SetService(svc *snapshot.Service) {
	s.update(func(snap *snapshot.Snapshot, c *Changes) (d snapshot.Dirty) {
		if reflect.DeepEqual(snap.Service(svc.Name), svc) {
			return d
		}
		snap.SetService(svc)
		c.ServiceEvents++
		d.Services = []ir.Name{svc.Name}
		return d
	})
}

// DeleteService removes a Service.
func (s *Store) DeleteService(name ir.Name) {
	s.update(func(snap *snapshot.Snapshot, c *Changes) (d snapshot.Dirty) {
		if snap.Service(name) == nil {
			return d
		}
		snap.DeleteService(name)
		c.ServiceEvents++
		d.Services = []ir.Name{name}
		return d
	})
}

// SetSlice adds or replaces an EndpointSlice.
func (s *Store) SetSlice(slice *snapshot.EndpointSlice) {
	s.update(func(snap *snapshot.Snapshot, c *Changes) (d snapshot.Dirty) {
		old := snap.Slice(slice.Name)
		if reflect.DeepEqual(old, slice) {
			return d
		}
		c.EndpointEvents++
		if old == nil || !old.Triggered.Equal(slice.Triggered) { // else it tells of an earlier change
			s.arriving.Triggered = slice.Triggered
		}
		if !slice.Triggered.IsZero() {
			c.AddTriggers(Trigger{familyOf(slice), slice.Triggered})
		}
		d.Services = snap.SetSlice(slice)
		return d
	})
}

// DeleteSlice removes an EndpointSlice.
func (s *Store) DeleteSlice(name ir.Name) {
	s.update(func(snap *snapshot.Snapshot, c *Changes) (d snapshot.Dirty) {
		if snap.Slice(name) == nil {
			return d
		}
		c.EndpointEvents++
		d.Services = snap.DeleteSlice(name)
		return d
	})
}

func (s *Store) setNode(n *snapshot.Node) {
	s.update(func(snap *snapshot.Snapshot, _ *Changes) (d snapshot.Dirty) {
		if d.Node = !reflect.DeepEqual(snap.Node(n.Name), n); d.Node {
			snap.SetNode(n)
		}
		return d
	})
}

func (s *Store) setServiceCIDR(c *snapshot.ServiceCIDR) {
	s.update(func(snap *snapshot.Snapshot, _ *Changes) (d snapshot.Dirty) {
		if d.Node = !reflect.DeepEqual(snap.ServiceCIDR(c.Name), c); d.Node {
			snap.SetServiceCIDR(c)
		}
		return d
	})
}

func (s *Store) deleteServiceCIDR(name string) {
	s.update(func(snap *snapshot.Snapshot, _ *Changes) (d snapshot.Dirty) {
		d.Node = snap.ServiceCIDR(name) != nil
		snap.DeleteServiceCIDR(name)
		return d
	})
}

// replace carries out a Replace of the Snapshot, and logs that most objects are gone. A valid list
// counts at once, an empty one included, as in kube-proxy: stale rules would send traffic to pods of
// others, and a server that was restored from nothing has default/kubernetes within seconds.
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
		if all := after[i] == 0 && gone > 0; all || gone >= mostGone && gone > before[i]/2 {
			log.Warn("most objects are gone at once: their rules go, too", "kind", [...]string{"Services", "EndpointSlices"}[i],
				"before", before[i], "removed", gone, "now", after[i])
		}
	}
}

// mostGone is how many objects may go at once without a word, where others stay.
const mostGone = 10

func familyOf(slice *snapshot.EndpointSlice) ir.Family {
	if slice.AddressType == ir.IPv6.String() {
		return ir.IPv6
	}
	return ir.IPv4
}

package watch

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Updates without a change are not pending and send no signal.
func TestStorePending(t *testing.T) {
	arrived := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := NewStore(func() time.Time { arrived = arrived.Add(time.Second); return arrived })
	svc := func() *snapshot.Service { return &snapshot.Service{Name: name("a"), ClusterIP: "10.0.0.1"} }
	s.Set(svc())
	s.Set(svc())
	s.Set(&snapshot.Node{Name: "node1"})
	if n := s.Pending(); n != 2 {
		t.Errorf("%d pending, want a Service and the node", n)
	}
	s.Follow(func(_ *snapshot.Snapshot, c Changes) {
		if want := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC); !c.Since.Equal(want) {
			t.Errorf("since %v, want %v: the oldest", c.Since, want)
		}
		if c.ServiceEvents != 1 || !c.Node {
			t.Errorf("changes: %+v", c)
		}
	})
	if n := s.Pending(); n != 2 {
		t.Errorf("%d pending until they are acknowledged, want 2", n)
	}
	s.Acknowledge()
	s.Set(svc())
	s.Set(&snapshot.Node{Name: "node1"})
	s.Delete("Service", name("b"))
	select {
	case <-s.Changed():
		t.Error("woken by what changes nothing")
	default:
	}
	if n := s.Pending(); n != 0 {
		t.Errorf("%d pending, want none", n)
	}
	s.SetInterfaces([]compiler.Interface{{Name: "eth0"}})
	s.SetHosted(map[netip.Addr]struct{}{})
	if n := s.Pending(); n != 2 {
		t.Errorf("%d pending, want the interfaces and the pods", n)
	}
}

// The number of pending names is bounded without a follower. A Service that changes repeatedly has
// one name. Services that are added and removed repeatedly make the node dirty.
func TestStoreNamesAreBounded(t *testing.T) {
	s := NewStore(time.Now)
	s.Set(&snapshot.Service{Name: name("a")})
	for i := range 3 * maxDeleted {
		s.Set(&snapshot.EndpointSlice{Name: name("a-1"), Service: name("a"), Endpoints: []snapshot.Endpoint{{Address: fmt.Sprint(i)}}})
	}
	if n := s.Pending(); n != 1 {
		t.Errorf("%d names of one Service wait", n)
	}
	passing := func(n int) {
		for i := range n {
			s.Set(&snapshot.Service{Name: name(fmt.Sprint(i))})
			s.Delete("Service", name(fmt.Sprint(i)))
		}
	}
	passing(maxDeleted)
	s.Follow(func(_ *snapshot.Snapshot, c Changes) {
		if c.Node || len(c.Services) != maxDeleted+1 {
			t.Errorf("%d names, node %t, want %d and not the node", len(c.Services), c.Node, maxDeleted+1)
		}
	})
	s.Acknowledge()
	passing(3 * maxDeleted)
	if n := s.Pending(); n > maxDeleted+3 { // the Service, its slice, and the node
		t.Errorf("%d names wait", n)
	}
	s.Follow(func(_ *snapshot.Snapshot, c Changes) {
		if !c.Node {
			t.Error("names were forgotten, and the node is not dirty")
		}
	})
}

// An equal ServiceCIDR is no change, nor is the deletion of an unknown one.
func TestStoreServiceCIDR(t *testing.T) {
	s := NewStore(time.Now)
	set := func(cidr string) {
		s.Set(&snapshot.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}})
	}
	for _, step := range []struct {
		name  string
		do    func()
		dirty bool
	}{
		{"added", func() { set("10.96.0.0/16") }, true},
		{"its status changes", func() { set("10.96.0.0/16") }, false},
		{"its range changes", func() { set("10.96.0.0/12") }, true},
		{"another one is deleted", func() { s.Delete("ServiceCIDR", ir.Name{Name: "other"}) }, false},
		{"deleted", func() { s.Delete("ServiceCIDR", ir.Name{Name: "kubernetes"}) }, true},
		{"deleted again", func() { s.Delete("ServiceCIDR", ir.Name{Name: "kubernetes"}) }, false},
	} {
		step.do()
		s.Follow(func(_ *snapshot.Snapshot, c Changes) {
			if c.Node != step.dirty {
				t.Errorf("%s: node dirty: %t", step.name, c.Node)
			}
		})
	}
}

// A replaced list counts as the changes that it makes.
func TestStoreReplace(t *testing.T) {
	s := NewStore(time.Now)
	all := func(names ...string) {
		s.replace(slog.New(slog.DiscardHandler), func(snap *snapshot.Snapshot) snapshot.Dirty {
			o := snapshot.New()
			for _, n := range names {
				o.SetService(&snapshot.Service{Name: name(n)})
				o.SetSlice(&snapshot.EndpointSlice{Name: name(n + "-1"), Service: name(n)})
			}
			return snap.Update(o)
		})
	}
	want := func(step string, n int) {
		t.Helper()
		if services, endpoints := s.Events(); services != n || endpoints != n {
			t.Errorf("%s: %d changes of Services, %d of endpoints, want %d", step, services, endpoints, n)
		}
	}
	all("a", "b")
	want("two come", 2)
	all("a", "b")
	want("nothing", 2)
	all("b", "c")
	want("one goes, one comes", 4)
	s.Follow(func(*snapshot.Snapshot, Changes) {})
	want("taken", 0)
}

// Triggers are bounded, both in the Store and in Changes that wait.
func TestTriggersAreBounded(t *testing.T) {
	s := NewStore(time.Now)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range maxTriggers + 10 {
		s.Set(&snapshot.EndpointSlice{Name: name("a"), Service: name("a"), AddressType: "IPv4", Triggered: at.Add(time.Duration(i))})
	}
	var waiting Changes
	s.Follow(func(_ *snapshot.Snapshot, c Changes) {
		if n := len(c.Triggers); n != maxTriggers || !c.Triggers[0].At.Equal(at) {
			t.Errorf("%d triggers from %v", n, c.Triggers[0].At)
		}
		waiting.AddTriggers(c.Triggers[:1]...)
		waiting.AddTriggers(c.Triggers...)
	})
	if n := len(waiting.Triggers); n != maxTriggers {
		t.Errorf("%d triggers wait", n)
	}
}

// The loss of all or most objects of a kind is logged with numbers. A few deletions, or
// replacements, are not.
func TestStoreGone(t *testing.T) {
	for _, tc := range []struct {
		before, stay, new int
		want              string
	}{
		{2, 0, 0, "level=WARN msg=\"most objects were deleted at the same time: their rules are removed\" kind=Services before=2 removed=2 now=0"},
		{30, 10, 1, "kind=Services before=30 removed=20 now=11"},
		{30, 20, 0, ""},
		{9, 1, 0, ""},
		{1, 0, 1, ""},
		{0, 0, 0, ""},
	} {
		var said strings.Builder
		s := NewStore(time.Now)
		log := slog.New(slog.NewTextHandler(&said, nil))
		replace := func(from, to int) {
			var all []*snapshot.Service
			for i := from; i < to; i++ {
				all = append(all, &snapshot.Service{Name: name(fmt.Sprint(i)), ClusterIP: "10.0.0.1"})
			}
			s.replace(log, func(snap *snapshot.Snapshot) snapshot.Dirty { return snap.ReplaceServices(all) })
		}
		replace(0, tc.before)
		replace(tc.before-tc.stay, tc.before+tc.new)
		if got := said.String(); !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%d, of which %d stay, and %d new: said %q, want %q", tc.before, tc.stay, tc.new, got, tc.want)
		}
	}
}

// Each change, including deletions, has one arrival. The trigger time of an EndpointSlice counts
// for the version that introduced it.
func TestArrivals(t *testing.T) {
	s := NewStore(func() time.Time { return time.Unix(5, 0) })
	trigger := time.Unix(3, 0)
	slice := func(ports ...snapshot.EndpointPort) *snapshot.EndpointSlice {
		return &snapshot.EndpointSlice{Name: name("a-1"), Service: name("a"), AddressType: "IPv4", Triggered: trigger, Ports: ports}
	}
	s.Set(&snapshot.Service{Name: name("a")})
	s.Set(&snapshot.Service{Name: name("a")})
	s.Set(slice())
	s.Set(slice(snapshot.EndpointPort{Port: 80}))
	s.Delete("EndpointSlice", name("a-1"))
	s.Delete("EndpointSlice", name("a-1"))
	s.Set(&snapshot.Node{Name: "node1"})
	at := Arrival{Service: name("a"), At: time.Unix(5, 0)}
	reported := at
	reported.Triggered = trigger
	s.Follow(func(_ *snapshot.Snapshot, c Changes) {
		if diff := cmp.Diff([]Arrival{at, reported, at, at}, c.Arrivals); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		c.AddArrivals(make([]Arrival, maxTriggers)...)
		if n := len(c.Arrivals); n != maxTriggers {
			t.Errorf("%d arrivals are kept, want %d", n, maxTriggers)
		}
	})
}

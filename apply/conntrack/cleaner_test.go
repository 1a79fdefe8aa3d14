package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// tracking is a table that a Cleaner cleans. Each pass waits for goOn before entries are selected.
type tracking struct {
	goOn chan struct{}

	mu      sync.Mutex
	entries []Entry
	ways    int
}

func (k *tracking) clean(ctx context.Context, sel *Selector, pick func([]Stale) ([]Stale, error)) (deleted int, err error) {
	k.mu.Lock()
	k.ways++
	var stale []Stale
	for _, e := range k.entries {
		if s, ok := sel.Stale(e); ok {
			stale = append(stale, s)
		}
	}
	k.mu.Unlock()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-k.goOn:
	}
	picked, err := pick(stale)
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range picked {
		for i, e := range k.entries {
			if e == s.Entry {
				k.entries = append(k.entries[:i:i], k.entries[i+1:]...)
				deleted++
				break
			}
		}
	}
	return deleted, nil
}

func (k *tracking) left() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return texts(k.entries)
}

// cleaning starts a Cleaner on entries.
func cleaning(t *testing.T, entries ...Entry) (*Cleaner, *tracking) {
	t.Helper()
	k := &tracking{goOn: make(chan struct{}), entries: entries}
	c := NewCleaner(time.Minute, func(d Cleaned) {
		if d.Err != nil {
			t.Error(d.Err)
		}
	})
	c.clean = k.clean
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return c, k
}

// to returns Work after which x/dns has these endpoints at 10.96.0.10:53.
func to(t *testing.T, endpoints ...string) Work {
	t.Helper()
	p := program(t, ir.IPv4, []string{"192.0.2.11"}, map[string][]int{"10.96.0.10:53/udp": {0}}, endpoints)
	return Work{Programs: ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: p.Node}),
		Changes: ir.Changes{IPv4: []ir.Change{{Name: p.Services[0].Name, New: &p.Services[0]}}}}
}

const (
	oldPod, newPod = "10.244.1.5:53", "10.244.1.6:53"
)

func flow(client int, from string) Entry {
	return entry(ir.UDP, fmt.Sprintf("192.0.2.200:%d", client), "10.96.0.10:53", from)
}

func left(t *testing.T, k *tracking, want ...Entry) {
	t.Helper()
	if diff := cmp.Diff(texts(want), k.left()); diff != "" {
		t.Errorf("entries (-want +got)\n%s", diff)
	}
}

// Ended does not block, and Busy is true until the flows are deleted.
func TestCleaner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := cleaning(t, flow(1, oldPod), flow(2, newPod))
		if c.Busy() {
			t.Error("busy at first")
		}
		c.BeginCommit()
		c.EndCommit(to(t, newPod))
		synctest.Wait()
		if !c.Busy() {
			t.Error("not busy in the middle")
		}
		left(t, k, flow(1, oldPod), flow(2, newPod))
		k.goOn <- struct{}{}
		synctest.Wait()
		if c.Busy() {
			t.Error("busy in the end")
		}
		left(t, k, flow(2, newPod))
	})
}

// Work without frontends whose entries may be stale does not make the Cleaner busy.
func TestCleanerIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := cleaning(t)
		tcp := program(t, ir.IPv4, nil, map[string][]int{"10.96.0.10:53/tcp": nil})
		tcp.Node.Mode = ir.ModeIPTables
		c.EndCommit(Work{Programs: ir.NewPrograms(tcp), All: true, Removed: []ir.Match{match(t, "10.96.0.9:53/tcp")}})
		if c.Busy() {
			t.Error("busy")
		}
		synctest.Wait()
		if k.ways != 0 {
			t.Errorf("%d ways through the table", k.ways)
		}
	})
}

// Work that arrives during a pass is merged into one further pass.
func TestCleanerMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := entry(ir.UDP, "192.0.2.200:9", "10.96.0.99:53", oldPod)
		both := []string{oldPod, newPod}
		c, k := cleaning(t, flow(1, oldPod), flow(2, newPod), gone)
		c.EndCommit(to(t, both...))
		synctest.Wait()
		c.EndCommit(to(t, oldPod))
		c.EndCommit(Work{Programs: to(t).Programs, Removed: []ir.Match{match(t, "10.96.0.99:53/udp")}})
		c.EndCommit(to(t, newPod))
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(1, oldPod), flow(2, newPod), gone)
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(2, newPod))
		if c.Busy() || k.ways != 2 {
			t.Errorf("busy: %v; %d ways through the table, want 2", c.Busy(), k.ways)
		}
	})
}

// An entry that is stale only by older rules is kept. This applies from the moment when the kernel
// may have the new rules.
func TestCleanerSelectsByWhatIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := cleaning(t, flow(1, oldPod), flow(2, newPod))
		c.EndCommit(to(t, "10.244.9.9:53")) // stale by both
		synctest.Wait()
		c.BeginCommit() // the kernel sends clients to newPod, but Ended was not called yet
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(1, oldPod), flow(2, newPod))
		c.EndCommit(to(t, newPod))
		synctest.Wait()
		left(t, k, flow(2, newPod))
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(2, newPod))

		c.EndCommit(to(t, oldPod))
		synctest.Wait()
		c.EndCommit(Work{Programs: to(t).Programs, Changes: ir.Changes{IPv4: []ir.Change{{Name: ir.Name{Namespace: "x", Name: "dns"}}}}})
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(2, newPod)) // the Service is gone, and its frontends are unknown: not ours to judge
	})
}

// After a failed commit the rules in force are unknown until a later one succeeds.
func TestCleanerEndsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &tracking{goOn: make(chan struct{}, 1), entries: []Entry{flow(1, oldPod)}}
		c := NewCleaner(time.Minute, func(d Cleaned) { t.Errorf("done: %v", d) })
		var got error
		c.clean = func(ctx context.Context, sel *Selector, pick func([]Stale) ([]Stale, error)) (int, error) {
			n, err := k.clean(ctx, sel, pick)
			got = err
			return n, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx)
		}()
		c.EndCommit(to(t, newPod))
		c.BeginCommit()
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(1, oldPod))
		cancel()
		<-ended
		if !errors.Is(got, context.Canceled) {
			t.Errorf("got %v", got)
		}
	})
}

// A failed deletion is retried after a second, then twice as long each time, or with the next
// sync's work. It does not make the Cleaner busy.
func TestCleanerTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &tracking{goOn: make(chan struct{}), entries: []Entry{flow(1, oldPod), flow(2, newPod)}}
		close(k.goOn)
		var fail atomic.Pointer[string] // why cleaning fails
		fail.Store(new("no buffer space"))
		began := time.Now()
		var reported []string
		c := NewCleaner(4*time.Second, func(d Cleaned) {
			reported = append(reported, fmt.Sprint(time.Since(began), " ", d.Deleted, " ", d.Err))
		})
		c.clean = func(ctx context.Context, sel *Selector, pick func([]Stale) ([]Stale, error)) (int, error) {
			if why := fail.Load(); why != nil {
				return 0, errors.New(*why)
			}
			return k.clean(ctx, sel, pick)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { c.Run(ctx) })
		defer all.Wait()
		defer cancel()
		pass := func(d time.Duration) {
			time.Sleep(d) // of the synctest bubble
			synctest.Wait()
		}
		c.EndCommit(to(t, newPod))
		pass(12 * time.Second)
		if c.Busy() {
			t.Error("busy with what may never come")
		}
		c.EndCommit(to(t, oldPod)) // retried immediately
		synctest.Wait()
		left(t, k, flow(1, oldPod), flow(2, newPod))
		fail.Store(nil)
		pass(time.Minute)
		left(t, k, flow(1, oldPod))
		fail.Store(new("gone again"))
		c.EndCommit(to(t, newPod))
		pass(500 * time.Millisecond)
		c.EndCommit(Work{Programs: to(t).Programs, All: true}) // all Services are removed
		pass(time.Minute)
		want := []string{"0s 0 no buffer space", "1s 0 no buffer space", "3s 0 no buffer space", "7s 0 no buffer space", "11s 0 no buffer space",
			"12s 0 no buffer space", "16s 1 <nil>", "1m12s 0 gone again", "1m12.5s 0 <nil>"}
		if diff := cmp.Diff(want, reported); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
		if c.Busy() || c.waiting != (ir.PerFamily[*scope]{}) {
			t.Error("something waits in the end")
		}
	})
}

// A frontend that a failed sync removed is remembered. Its flows are deleted after the next full
// sync, unless the frontend exists again.
func TestCleanerAfterFailedSync(t *testing.T) {
	frontends := func(matches ...string) []ir.Match {
		var all []ir.Match
		for _, m := range matches {
			all = append(all, ir.Match{Addr: netip.MustParseAddr(m), Protocol: ir.UDP, Port: 53})
		}
		return all
	}
	synctest.Test(t, func(t *testing.T) {
		gone := entry(ir.UDP, "192.0.2.200:9", "10.96.0.99:53", oldPod)
		c, k := cleaning(t, flow(1, newPod), gone)
		c.BeginCommit()
		c.NoteRemoved(frontends("10.96.0.99", "10.96.0.10"))
		c.BeginCommit()
		w := to(t, newPod)
		w.All = true
		w.Programs.IPv4.Services = []ir.Service{*w.Changes.IPv4[0].New}
		c.EndCommit(w)
		k.goOn <- struct{}{}
		synctest.Wait()
		left(t, k, flow(1, newPod))
	})
}

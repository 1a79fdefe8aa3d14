package reconcile

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// many returns a version of Service "many" with n ports, the work for each of which is 4.
func many(n int, version byte) ir.Service {
	s := ir.Service{Name: svc("many", 0).Name}
	for i := range n {
		port := ir.ServicePort{Service: s.Name, Port: fmt.Sprintf("p%02d", i), Protocol: ir.TCP}
		s.Frontends = append(s.Frontends, ir.Frontend{Match: ir.Match{Protocol: ir.TCP, Port: uint16(1000 + i)}, Port: port, Routes: []ir.Route{{Pool: i}}})
		s.Pools = append(s.Pools, ir.Pool{Port: port, Backends: []ir.Backend{{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, version}), 80)}}})
	}
	return s
}

// versions are the versions of a Service's ports: 1112.
func versions(s *ir.Service) string {
	if s == nil {
		return "none"
	}
	var b strings.Builder
	for _, p := range s.Pools {
		fmt.Fprint(&b, p.Backends[0].AddrPort.Addr().As4()[3])
	}
	return b.String()
}

// divided is a world whose syncs have a limit of two ports of Service "many" and take 100 ms. It
// logs the changes of each sync.
type divided struct {
	*world
	changes []string
	commit  func(n int) // called in each commit, with its number
	commits int
}

func runDivided(t *testing.T, play func(w *divided)) {
	d := &divided{commit: func(int) {}}
	runWith(t, func(w *world) {
		d.world = w
		w.Schedule.Limit = 9
		w.Committing = func() {
			d.commits++
			time.Sleep(100 * time.Millisecond) // of the bubble
			d.commit(d.commits)
		}
		synced := w.Synced
		w.Synced = func(s *Sync) {
			synced(s)
			if name := many(1, 1).Name; s.Err == nil && w.queue.has(name) != (s.Work.Waits != nil && s.Work.Waits(name)) {
				t.Errorf("%v: a %v sync reports that the Service waits: %t", time.Since(w.began), s.Kind, s.Work.Waits != nil)
			}
			line := fmt.Sprintf("%v", s.Ended.Sub(w.began).Round(100*time.Millisecond))
			for _, c := range s.Work.Changes.IPv4 {
				line += " " + c.Name.Name
				if c.Name.Name == "many" {
					line += "=" + versions(c.New)
				}
				if s.Work.Waits != nil && s.Work.Waits(c.Name) {
					line += "…"
				}
			}
			if s.Kind == Change && s.Work.Changes.IPv4 == nil {
				return // of a token whose change was already taken
			}
			if s.Kind == Full {
				line += " full"
			}
			if s.Err != nil {
				line += " fails"
			}
			d.changes = append(d.changes, line)
		}
	}, func(*world) {
		d.want(svc("a", 1), many(5, 1))
		d.pass(time.Minute)
		d.changes, d.commits = nil, 0
		play(d)
	})
}

func (d *divided) expect(versionsOfMany string, lines ...string) {
	d.t.Helper()
	if diff := cmp.Diff(lines, d.changes); diff != "" {
		d.t.Errorf("changes (-want +got):\n%s", diff)
	}
	got := "none"
	for _, s := range d.dataplane.applied.Programs().IPv4.Services {
		if s.Name.Name == "many" {
			got = versions(&s)
		}
	}
	if got != versionsOfMany {
		d.t.Errorf("applied %s, want %s", got, versionsOfMany)
	}
	if why := d.state.NotReady(); why != "" {
		d.t.Errorf("not ready: %s", why)
	}
}

// A large change is divided. A small one beside it is applied first, and the node is ready after all
// of it.
func TestLargeChangeIsDivided(t *testing.T) {
	runDivided(t, func(w *divided) {
		var ready []string
		w.commit = func(int) { ready = append(ready, w.state.NotReady()) }
		w.want(svc("a", 2), many(5, 2))
		w.pass(time.Minute)
		w.expect("22222", "1m0.1s a", "1m0.2s many=22111…", "1m0.3s many=22221…", "1m0.4s many=22222")
		if diff := cmp.Diff(slices.Repeat([]string{"a change is pending"}, 4), ready); diff != "" {
			t.Errorf("not ready because (-want +got):\n%s", diff)
		}
	})
}

// A small change that arrives meanwhile waits for one part only, and for minSyncPeriod as ever.
func TestSmallChangeBesideLargeOne(t *testing.T) {
	for _, min := range []time.Duration{0, time.Second} {
		runDivided(t, func(w *divided) {
			w.Schedule.Min = min
			w.commit = func(n int) {
				if n == 1 {
					w.source.now = want(svc("a", 2), many(5, 2))
					token(w.source.changed)
				}
			}
			w.want(svc("a", 1), many(5, 2))
			w.pass(time.Minute)
			lines := []string{"1m0.1s many=22111…", "1m0.2s a", "1m0.3s many=22221…", "1m0.4s many=22222"}
			if min == time.Second {
				lines = []string{"1m0.1s many=22111…", "1m0.2s many=22221…", "1m0.3s many=22222", "1m1.2s a"}
			}
			w.expect("22222", lines...)
		})
	}
}

// After a failure in the middle, a full sync applies all.
func TestDividedChangeFails(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.commit = func(n int) {
			if n == 1 {
				w.dataplane.fail = errBusy
			}
		}
		w.want(svc("a", 1), many(5, 2))
		w.pass(time.Minute)
		w.expect("22222", "1m0.1s many=22111… fails", "1m1.2s many=22222 full")
	})
}

// The kernel refuses another Service: everything that waits is then applied together.
func TestDividedChangeBesideRefusal(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.want(svc("a", 666), many(5, 2))
		w.pass(10 * time.Second)
		if got := versions(&w.dataplane.applied.Programs().IPv4.Services[0]); got != "22222" || len(w.state.Refused) != 1 {
			t.Errorf("applied %s, refused %v", got, w.state.Refused)
		}
		if diff := cmp.Diff([]string{"1m0.2s a", "1m0.3s many=22222"}, w.changes); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	})
}

// A newer version replaces the one that waits. It continues with the ports that were not applied.
func TestDividedChangeIsReplaced(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.Schedule.Min = 0
		w.commit = func(n int) {
			if n == 1 {
				w.source.now = want(svc("a", 1), many(5, 3))
				token(w.source.changed)
			}
		}
		w.want(svc("a", 1), many(5, 2))
		w.pass(time.Minute)
		w.expect("33333", "1m0.1s many=22111…", "1m0.2s many=22331…", "1m0.3s many=32333…", "1m0.4s many=33333")
	})
}

func TestDividedServiceIsRemoved(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.Schedule.Min = 0
		w.commit = func(n int) {
			if n == 1 {
				w.source.now = want(svc("a", 1))
				token(w.source.changed)
			}
		}
		w.want(svc("a", 1), many(5, 2))
		w.pass(time.Minute)
		w.expect("none", "1m0.1s many=22111…", "1m0.2s many=none")
	})
}

// A Service is added and removed as a whole, but after small changes.
func TestAddedServiceIsWhole(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.want(svc("a", 2))
		w.pass(time.Minute)
		w.want(svc("a", 3), many(5, 2))
		w.pass(time.Minute)
		w.expect("22222", "1m0.1s a", "1m0.2s many=none", "2m0.1s a", "2m0.2s many=22222")
	})
}

// A Service that is recreated with another ClusterIP changes as a whole.
func TestOtherAddressIsWhole(t *testing.T) {
	old, now := many(9, 1), many(9, 1)
	for i := range now.Frontends {
		now.Frontends[i].Match.Addr = netip.MustParseAddr("10.96.0.99")
	}
	var q queue
	if got := q.next(ir.Changes{IPv4: []ir.Change{{Name: old.Name, Old: &old, New: &now}}}, 9); !q.empty() || got.IPv4[0].New != &now {
		t.Errorf("divided: %v", got)
	}
}

// Ports are added and removed one after the other.
func TestPortsAreDivided(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.want(svc("a", 1), many(10, 1))
		w.pass(time.Minute)
		w.want(svc("a", 1), many(3, 1))
		w.pass(time.Minute)
		w.expect("111", "1m0.1s many=111111111…", "1m0.2s many=1111111111", "2m0.1s many=111111…", "2m0.2s many=111")
	})
}

// While versions of a large Service arrive faster than all its parts are applied, the first of them
// waits, but parts are progress.
func TestPartsAreProgress(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.want(many(60, 1))
		w.pass(time.Minute)
		first, before := time.Now(), w.state.Parts
		for n := range byte(20) {
			w.want(many(60, 2+n))
			synctest.Wait()
			parts := w.state.Parts
			w.pass(time.Second)
			if w.state.Parts == parts {
				t.Errorf("%v: no progress", time.Since(w.began))
			}
		}
		if !w.state.Waiting.Equal(first) {
			t.Errorf("waits since %v, want %v", w.state.Waiting, first)
		}
		w.pass(time.Minute)
		if after := w.state.Parts; !w.state.Waiting.IsZero() || after == before {
			t.Errorf("at rest: waits since %v, %d parts", w.state.Waiting, after-before)
		}
	})
}

// A comparison with the kernel does not wait for all parts, however many there are.
func TestDividedChangeBesideDrift(t *testing.T) {
	runDivided(t, func(w *divided) {
		w.want(svc("a", 1), many(60, 1))
		w.pass(time.Minute)
		w.changes, w.commits = nil, 0
		w.commit = func(n int) {
			if n == 1 {
				w.dataplane.rules[svc("a", 0).Name] = 9
				w.drift <- struct{}{}
			}
		}
		changed := time.Now()
		w.want(svc("a", 1), many(60, 2))
		w.pass(3 * time.Second)
		if !w.state.Waiting.Equal(changed) {
			t.Errorf("the change of %v waits since %v", changed, w.state.Waiting)
		}
		w.pass(7 * time.Second)
		full := slices.IndexFunc(w.changes, func(s string) bool { return strings.HasSuffix(s, "full") })
		if n := len(w.changes); full < 0 || full == n-1 || n < 30 {
			t.Errorf("sync %d of %d is full", full+1, n)
		}
		if got := named(w.dataplane.rules)["a"]; got != 1 {
			t.Errorf("a is %d", got)
		}
	})
}

// A Reconciler that ends between two parts loses nothing: the next one applies all.
func TestDividedChangeIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dataplane, writer := newWriter()
		source := &fakeSource{changed: make(chan struct{}, 1), last: want(), now: want(many(5, 1))}
		start := func(commit func(end func())) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			writer.Committing = func() { commit(cancel) }
			r := &Reconciler{Writer: *writer, Schedule: Schedule{Min: time.Second, Retry: time.Second, Full: time.Hour, Limit: 9},
				Source: source, Report: func(State) {}, Now: time.Now, After: time.After, Synced: func(*Sync) {}}
			r.Run(ctx)
		}
		commits := 0
		start(func(end func()) {
			switch commits++; commits {
			case 1:
				source.now = want(many(5, 2))
				token(source.changed)
			case 3:
				end()
			}
		})
		if got := versions(&dataplane.applied.Programs().IPv4.Services[0]); got != "22221" {
			t.Fatalf("%s after %d commits", got, commits)
		}
		start(func(end func()) { end() })
		if got := versions(&dataplane.applied.Programs().IPv4.Services[0]); got != "22222" {
			t.Errorf("%s after the next start", got)
		}
	})
}

// Many small changes are divided, too, and those that arrive later are not last.
func TestManyChangesAreDivided(t *testing.T) {
	var q queue
	all := func(version uint16) (changes []ir.Change) {
		for i := range 20 {
			old, now := svc(fmt.Sprintf("s%02d", i), 1), svc(fmt.Sprintf("s%02d", i), version)
			changes = append(changes, ir.Change{Name: old.Name, Old: &old, New: &now})
		}
		return changes
	}
	names := func(changes ir.Changes) string {
		var b []string
		for _, c := range changes.IPv4 {
			b = append(b, c.Name.Name)
		}
		return strings.Join(b, " ")
	}
	late := svc("late", 1)
	got := []string{names(q.next(ir.Changes{IPv4: all(1)}, 10)), names(q.next(ir.Changes{}, 10)),
		names(q.next(ir.Changes{IPv4: []ir.Change{{Name: late.Name, New: &late}}}, 10)), names(q.next(ir.Changes{}, 10)), names(q.next(ir.Changes{}, 10))}
	want := []string{"s00 s01 s02 s03 s04", "s05 s06 s07 s08 s09", "late", "s10 s11 s12 s13 s14", "s15 s16 s17 s18 s19"}
	if diff := cmp.Diff(want, got); diff != "" || !q.empty() {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A frontend never belongs to two Services or two ports, and never to none while it moves.
func TestMovedFrontends(t *testing.T) {
	a, b := many(9, 1), many(9, 1)
	b.Name.Name = "other"
	for i := range b.Frontends {
		b.Frontends[i].Match.Port += 100
	}
	q := queue{}
	lost, won := many(9, 2), b
	lost.Frontends = slices.Clone(lost.Frontends[:8])
	won.Frontends = append(slices.Clone(b.Frontends), a.Frontends[8])
	changes := ir.Changes{IPv6: []ir.Change{{Name: a.Name, Old: &a, New: &lost}, {Name: b.Name, Old: &b, New: &won}}}
	if now := q.next(changes, 9); len(now.IPv6) != 2 || now.IPv6[0].New != &lost || now.IPv6[1].New != &won || !q.empty() {
		t.Errorf("a frontend moves to another Service: %v", now)
	}
	swapped := many(9, 2)
	swapped.Frontends[0].Match, swapped.Frontends[8].Match = swapped.Frontends[8].Match, swapped.Frontends[0].Match
	if now := q.next(ir.Changes{IPv6: []ir.Change{{Name: a.Name, Old: &a, New: &swapped}}}, 9); len(now.IPv6) != 1 || now.IPv6[0].New != &swapped || !q.empty() {
		t.Errorf("frontends move to other ports: %v", now)
	}
	healthy, checked := many(9, 2), b
	a.Health, checked.Health = &ir.HealthCheck{Port: 30000}, &ir.HealthCheck{Port: 30000}
	if now := q.next(ir.Changes{IPv6: []ir.Change{{Name: a.Name, Old: &a, New: &healthy}, {Name: b.Name, Old: &b, New: &checked}}}, 9); len(now.IPv6) != 2 || !q.empty() {
		t.Errorf("a health check port moves: %v", now)
	}
}

// Random changes have the same result as without a queue. In each version between, each port is
// that of the version before or of the wanted one.
func TestQueueHistories(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var q queue
		wanted, applied := map[familyName]*ir.Service{}, map[familyName]*ir.Service{}
		parts := 0
		step := func(changes ir.Changes) {
			for f, of := range q.next(changes, 1+random.IntN(60)).All() {
				for _, c := range of {
					at := familyName{f, c.Name}
					if c.Old != applied[at] {
						t.Fatalf("seed %d: %v: Old was not applied", seed, at)
					}
					target := ir.Change{Name: c.Name, Old: wanted[at], New: c.New}
					if c.New != wanted[at] {
						parts++
						if !q.has(c.Name) || c.New == nil || c.Old == nil || wanted[at] == nil {
							t.Fatalf("seed %d: %v is divided", seed, at)
						}
						before := map[ir.ServicePort]*ir.Service{}
						for port, part := range (ir.Change{Old: c.Old, New: c.New}).ByPort {
							if !part.Equivalent() {
								before[port] = part.New
							}
						}
						if len(before) == 0 {
							t.Fatalf("seed %d: %v: a sync without progress", seed, at)
						}
						for port, part := range target.ByPort {
							if _, changed := before[port]; changed && !part.Equivalent() {
								t.Fatalf("seed %d: %v: port %v has a version that was never wanted", seed, at, port)
							}
						}
					}
					if c.New != nil && !slices.IsSortedFunc(c.New.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) }) {
						t.Fatalf("seed %d: frontends are not in order", seed)
					}
					if applied[at] = c.New; c.New == nil {
						delete(applied, at)
					}
				}
			}
		}
		for range 30 {
			var changes ir.Changes
			for f := range changes.All() {
				for _, name := range []string{"x", "y", "z"} {
					if random.IntN(3) > 0 {
						continue
					}
					at := familyName{f, ir.Name{Namespace: "ns", Name: name}}
					c := ir.Change{Name: at.name, Old: wanted[at]}
					if random.IntN(8) > 0 {
						c.New = irtest.Ports(random.IntN)
						c.New.Name = at.name
					}
					if c.Old == nil && c.New == nil {
						continue
					}
					if wanted[at] = c.New; c.New == nil {
						delete(wanted, at)
					}
					*changes.At(f) = append(*changes.At(f), c)
				}
			}
			step(changes)
		}
		for left := 100; !q.empty(); left-- {
			if left == 0 {
				t.Fatalf("seed %d: the queue does not end", seed)
			}
			step(ir.Changes{})
		}
		if !maps.Equal(wanted, applied) {
			t.Fatalf("seed %d: applied is not what is wanted", seed)
		}
		if parts == 0 && seed < 10 {
			t.Errorf("seed %d: nothing was divided", seed)
		}
	}
}

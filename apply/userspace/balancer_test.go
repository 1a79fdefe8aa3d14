package userspace

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func addrs(names ...string) (all []netip.AddrPort) {
	for _, n := range names {
		all = append(all, netip.MustParseAddrPort(n))
	}
	return all
}

// take picks a backend for each client in turn.
func take(b *balancer, now time.Time, clients ...string) (got []netip.AddrPort) {
	for _, c := range clients {
		a, _ := b.pick(netip.MustParseAddr(c), now, false)
		got = append(got, a)
	}
	return got
}

// The cases of kube-proxy's unit tests of its round robin.
func TestTurns(t *testing.T) {
	now := time.Unix(1e9, 0)
	three := addrs("10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3")
	var b balancer
	if _, ok := b.pick(netip.MustParseAddr("192.0.2.1"), now, false); ok {
		t.Error("without backends there is one to choose")
	}
	b.set(three[:1], 0)
	if got := take(&b, now, "192.0.2.1", "192.0.2.1"); got[0] != three[0] || got[1] != three[0] {
		t.Errorf("one backend: %v", got)
	}
	b.set(three, 0)
	round := func(of []netip.AddrPort) {
		t.Helper()
		clients := slices.Repeat([]string{"192.0.2.1"}, 2*len(of))
		got := take(&b, now, clients...)
		first := slices.Index(of, got[0])
		for i, a := range got {
			if a != of[(first+i)%len(of)] {
				t.Fatalf("not in turn: %v of %v", got, of)
			}
		}
	}
	round(three)
	round(three)
	b.set(addrs("10.0.0.8:8", "10.0.0.9:9"), 0)
	round(addrs("10.0.0.8:8", "10.0.0.9:9"))
	b.set(nil, 0)
	if _, ok := b.pick(netip.MustParseAddr("192.0.2.1"), now, false); ok {
		t.Error("all backends are gone, and there is one to choose")
	}
}

// Setting the same backends does not restart the round robin.
func TestTurnGoesOn(t *testing.T) {
	now := time.Unix(1e9, 0)
	two := addrs("10.0.0.1:1", "10.0.0.2:2")
	var b balancer
	b.set(two, 0)
	last := take(&b, now, "192.0.2.1")[0]
	for range 10 {
		b.set(two, 0)
		next := take(&b, now, "192.0.2.1")[0]
		if next == last {
			t.Fatal("the same backend twice")
		}
		last = next
	}
}

func TestAffinity(t *testing.T) {
	begin := time.Unix(1e9, 0)
	const timeout = time.Minute
	three := addrs("10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3")
	var b balancer
	b.set(three, timeout)
	clients := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}
	first := take(&b, begin, clients...)
	if first[0] == first[1] || first[1] == first[2] || first[2] == first[0] || first[3] != first[0] {
		t.Errorf("new clients are not spread: %v", first)
	}
	if again := take(&b, begin.Add(timeout-time.Second), clients...); !slices.Equal(again, first) {
		t.Errorf("%v became %v", first, again)
	}
	// Each connection renews the affinity.
	if again := take(&b, begin.Add(2*timeout-2*time.Second), clients[0]); again[0] != first[0] {
		t.Error("a connection did not renew the affinity")
	}
	at := begin.Add(2*timeout - time.Second) // expired for all but the first
	if got := take(&b, at, clients[1], clients[1]); got[0] != got[1] {
		t.Error("a client that came back after the time is not kept")
	}

	// Removing a backend frees its clients, and leaves the others.
	kept := take(&b, at, clients[0])[0]
	rest := slices.DeleteFunc(slices.Clone(three), func(a netip.AddrPort) bool { return a == kept })
	b.set(rest, timeout)
	if got := take(&b, at, clients[0])[0]; !slices.Contains(rest, got) {
		t.Errorf("led to %v, which is gone", got)
	}
	// A backend that does not respond is permanently replaced by the next.
	before := take(&b, at, clients[2])[0]
	after, _ := b.pick(netip.MustParseAddr(clients[2]), at, true)
	if now := take(&b, at, clients[2])[0]; now != after {
		t.Errorf("after %v and %v it is %v", before, after, now)
	}
	// Without affinity no client is stored.
	b.set(rest, 0)
	if got := take(&b, at, clients[0], clients[0]); got[0] == got[1] || b.clients != nil {
		t.Errorf("affinity that was taken away: %v", got)
	}
	// Affinity may be enabled while the backends exist.
	b.set(rest, timeout)
	if got := take(&b, at, clients[0], clients[0]); got[0] != got[1] {
		t.Errorf("affinity that was added: %v", got)
	}
}

// Clients keep their backends when another client's backend is removed, and when one is added. The
// new backend is next in turn for new clients, and no existing client moves to it.
func TestAffinityOutlivesOthers(t *testing.T) {
	now := time.Unix(1e9, 0)
	three := addrs("10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3")
	var b balancer
	b.set(three, time.Hour)
	clients := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}
	before := take(&b, now, clients...)
	gone := before[1]
	two := slices.DeleteFunc(slices.Clone(three), func(a netip.AddrPort) bool { return a == gone })
	b.set(two, time.Hour)
	after := take(&b, now, clients...)
	if after[0] != before[0] || after[2] != before[2] || after[1] == gone {
		t.Errorf("%v goes: %v became %v", gone, before, after)
	}
	b.set(append(two, addrs("10.0.0.4:4")...), time.Hour)
	if again := take(&b, now, clients...); !slices.Equal(again, after) {
		t.Errorf("one comes: %v became %v", after, again)
	}
	if fresh := take(&b, now, "192.0.2.4", "192.0.2.5", "192.0.2.6"); fresh[0] == fresh[1] || fresh[1] == fresh[2] || fresh[2] == fresh[0] {
		t.Errorf("new clients are not spread over all: %v", fresh)
	}
	// All backends may be replaced together: no client keeps an old one.
	b.set(addrs("10.0.0.8:8"), time.Hour)
	for i, got := range take(&b, now, clients...) {
		if got != netip.MustParseAddrPort("10.0.0.8:8") {
			t.Errorf("client %d is led to %v, which is gone", i, got)
		}
	}
}

// The number of stored clients is bounded, and expired ones are removed first.
func TestAffinityIsBounded(t *testing.T) {
	begin := time.Unix(1e9, 0)
	var b balancer
	b.set(addrs("10.0.0.1:1", "10.0.0.2:2"), time.Minute)
	come := func(network string, n int, now time.Time) {
		for i := range n {
			take(&b, now, fmt.Sprintf("%s:%x:%x", network, i>>16, i&0xffff))
		}
	}
	come("2001:db8:1:", 3*maxClients, begin)
	if len(b.clients) > maxClients {
		t.Errorf("%d clients are remembered, want %d at most", len(b.clients), maxClients)
	}
	come("2001:db8:2:", maxClients, begin.Add(time.Hour))
	for addr, c := range b.clients {
		if c.last.Equal(begin) {
			t.Fatalf("%s is remembered, whose time was over when new ones needed room", addr)
		}
	}
}

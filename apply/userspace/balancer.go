package userspace

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

// balancer selects the backends of one service port, round robin.
type balancer struct {
	users    int // number of listeners; protected by the Proxy's lock
	mu       sync.Mutex
	backends []netip.AddrPort
	next     int
	affinity time.Duration // how long a client keeps its backend; 0 for no affinity
	clients  map[netip.Addr]client
	expireAt int // number of clients at which expired ones are removed
}

// client is a known client, with session affinity.
type client struct {
	backend netip.AddrPort
	last    time.Time // its last connection
}

// maxClients bounds the clients of a service port with session affinity. A new client then replaces
// another.
const maxClients = 65536

// set changes the backends. New backends start at a random position, so that the nodes of a cluster
// do not all start with the same one. If the backends are equal, the position is kept.
func (b *balancer) set(backends []netip.AddrPort, affinity time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.affinity = affinity; affinity == 0 {
		b.clients = nil
	}
	if slices.Equal(b.backends, backends) {
		return
	}
	b.backends = slices.Clone(backends)
	b.next = 0
	if len(backends) > 0 {
		b.next = rand.IntN(len(backends))
	}
	stays := sets.New(backends...)
	maps.DeleteFunc(b.clients, func(_ netip.Addr, c client) bool { return !stays.Has(c.backend) })
}

// pick returns the backend for a client; ok is false without backends. again means that the
// previous backend did not respond. The client then receives the next one, and keeps it.
func (b *balancer) pick(from netip.Addr, now time.Time, again bool) (backend netip.AddrPort, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.backends) == 0 {
		return backend, false
	}
	if b.affinity > 0 && !again {
		if c, known := b.clients[from]; known && now.Sub(c.last) < b.affinity {
			b.clients[from] = client{c.backend, now}
			return c.backend, true
		}
	}
	backend = b.backends[b.next]
	b.next = (b.next + 1) % len(b.backends)
	if b.affinity > 0 {
		b.remember(from, client{backend, now})
	}
	return backend, true
}

// remember stores a client. Expired clients are removed when their number has doubled since the
// last removal. If there are still too many, an eighth of them is removed, so that this does not
// recur for each new client.
func (b *balancer) remember(from netip.Addr, c client) {
	if b.clients == nil {
		b.clients, b.expireAt = map[netip.Addr]client{}, 1024
	}
	if _, known := b.clients[from]; !known && len(b.clients) >= b.expireAt {
		maps.DeleteFunc(b.clients, func(_ netip.Addr, old client) bool { return c.last.Sub(old.last) >= b.affinity })
		if len(b.clients) >= maxClients {
			for addr := range b.clients {
				if delete(b.clients, addr); len(b.clients) <= maxClients/8*7 {
					break
				}
			}
		}
		b.expireAt = min(max(1024, 2*len(b.clients)), maxClients)
	}
	b.clients[from] = c
}

// has reports whether a backend is still in use.
func (b *balancer) has(backend netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.backends, backend)
}

// same reports whether a balancer has these backends and affinity.
func (b *balancer) same(backends []netip.AddrPort, affinity time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.affinity == affinity && slices.Equal(b.backends, backends)
}

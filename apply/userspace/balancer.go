package userspace

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// balancer chooses the backends of one service port, one after the other.
type balancer struct {
	users    int // how many listeners have it; the Proxy's lock is held
	mu       sync.Mutex
	backends []netip.AddrPort
	next     int
	affinity time.Duration // how long a client keeps its backend; 0: no affinity
	clients  map[netip.Addr]client
	sweep    int // the number of clients at which those whose time is over are looked for
}

// client is who came before, with session affinity.
type client struct {
	backend netip.AddrPort
	last    time.Time // it chose it, or came back to it
}

// maxClients is how many clients a listener remembers for session affinity. Who
// comes when there are more takes the place of some other one.
const maxClients = 65536

// set changes what there is to choose from. The turn begins anywhere, so that
// the nodes of a cluster do not all begin with the same backend; it goes on
// where nothing differs.
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
	stays := make(map[netip.AddrPort]bool, len(backends))
	for _, a := range backends {
		stays[a] = true
	}
	for addr, c := range b.clients {
		if !stays[c.backend] {
			delete(b.clients, addr)
		}
	}
}

// pick returns the backend for a client; ok is false where there is none. again
// tells that the one it was given last does not answer: it gets the next one,
// and keeps that.
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

// remember keeps a client. Those whose time is over go each time when there are
// twice as many as were left the last time; if there are too many all the same,
// an eighth of them, so that room is not to be made for each one that comes.
func (b *balancer) remember(from netip.Addr, c client) {
	if b.clients == nil {
		b.clients, b.sweep = map[netip.Addr]client{}, 1024
	}
	if _, known := b.clients[from]; !known && len(b.clients) >= b.sweep {
		for addr, old := range b.clients {
			if c.last.Sub(old.last) >= b.affinity {
				delete(b.clients, addr)
			}
		}
		if len(b.clients) >= maxClients {
			for addr := range b.clients {
				if delete(b.clients, addr); len(b.clients) <= maxClients/8*7 {
					break
				}
			}
		}
		b.sweep = min(max(1024, 2*len(b.clients)), maxClients)
	}
	b.clients[from] = c
}

// has reports whether a backend is still one to choose.
func (b *balancer) has(backend netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.backends, backend)
}

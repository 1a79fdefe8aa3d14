package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Limits bound the resources of a Proxy.
type Limits struct {
	// Connections is the maximum number of TCP connections. Further ones wait in the kernel's queue.
	Connections int
	// Sessions is the maximum number of UDP clients with a socket. Datagrams of further clients are
	// dropped until a session expires.
	Sessions int
	// Listeners is the maximum number of listener sockets, including held ones. Further service ports
	// have no listener. 0 is no limit.
	Listeners int
}

// Options configure a Proxy.
type Options struct {
	Limits
	// DialTimeouts are the timeouts of consecutive attempts to connect to a backend for a TCP
	// connection. Each attempt uses the next backend (USR-5, growing dial timeouts).
	DialTimeouts []time.Duration
	UDPIdle      time.Duration // how long a silent UDP client keeps its backend
	// Suffixes are appended in turn to names that a DNS service cannot resolve; the first may be
	// empty. nil leaves names unchanged (USR-21, DNS suffixes on Windows).
	Suffixes []string
	Log      *slog.Logger // optional
}

// DefaultLimits are those of mode userspace, before they are reduced to the process's limit of
// descriptors.
var DefaultLimits = Limits{Connections: 10000, Sessions: 10000}

// Key identifies a listener.
type Key struct {
	Family ir.Family
	Port   ir.ServicePort
	At     netip.AddrPort // of a listener for one frontend; zero for one that serves all frontends of the service port
}

// KeyOf returns the key of a listener.
func KeyOf(f ir.Family, l *rules.Listener) Key {
	k := Key{Family: f, Port: l.Port}
	if l.Frontend != nil {
		k.At = l.Listen
	}
	return k
}

// Compare orders Keys of a family.
func (k Key) Compare(o Key) int { return cmp.Or(k.Port.Compare(o.Port), k.At.Compare(o.At)) }

// Proxy serves listeners. Its methods are safe for concurrent use, except that only one goroutine
// at a time may change listeners.
type Proxy struct {
	Options
	slots    chan struct{} // one token per TCP connection
	sessions atomic.Int64  // number of UDP sessions
	idle     atomic.Int64  // current UDPIdle in nanoseconds

	mu          sync.Mutex
	listeners   map[Key]*listener
	balancers   map[Key]*balancer    // by service port, shared by its listeners
	replaced    []*listener          // until CloseReplaced
	sockets     int                  // of listeners, including held ones
	connections map[*connection]bool // TCP connections
	aborting    bool                 // new connections are rejected
	lastWarning time.Time            // last log message about a limit
	work        sync.WaitGroup       // all goroutines

	counts ir.PerFamily[[2]counts] // of TCP and UDP
}

// counts are the counters for apply.Proxied.
type counts struct {
	clients                                              atomic.Int64
	accepted, dialFailures, unreachable, waited, dropped atomic.Uint64
}

// countsOf returns the counts of a listener's family and protocol.
func (p *Proxy) countsOf(k Key) *counts {
	of := p.counts.At(k.Family)
	if k.Port.Protocol == ir.UDP {
		return &of[1]
	}
	return &of[0]
}

// NewProxy returns a Proxy without listeners.
func NewProxy(o Options) *Proxy {
	p := &Proxy{Options: o, slots: make(chan struct{}, o.Connections),
		listeners: map[Key]*listener{}, balancers: map[Key]*balancer{}, connections: map[*connection]bool{}}
	p.SetUDPIdle(o.UDPIdle)
	return p
}

// SetUDPIdle changes UDPIdle for all clients.
func (p *Proxy) SetUDPIdle(d time.Duration) { p.idle.Store(int64(d)) }

// Counts returns the counters of each family and protocol.
func (p *Proxy) Counts() []apply.Proxied {
	listening := map[*counts]int{}
	p.mu.Lock()
	for k, l := range p.listeners {
		if !l.suspended.Load() {
			listening[p.countsOf(k)]++
		}
	}
	p.mu.Unlock()
	var all []apply.Proxied
	for _, f := range ir.Families() {
		for i, protocol := range [...]ir.Protocol{ir.TCP, ir.UDP} {
			c := &p.counts.At(f)[i]
			all = append(all, apply.Proxied{
				Family: f, Protocol: protocol, Listeners: listening[c], Clients: int(c.clients.Load()),
				Accepted: c.accepted.Load(), DialFailures: c.dialFailures.Load(), Unreachable: c.unreachable.Load(),
				Waited: c.waited.Load(), Dropped: c.dropped.Load(),
			})
		}
	}
	return all
}

// Connections returns the number of TCP connections. A nil Proxy has none.
func (p *Proxy) Connections() int {
	if p == nil {
		return 0
	}
	return len(p.slots)
}

// listener is a port with its balancer and held sockets.
type listener struct {
	key       Key
	at        netip.AddrPort
	balancer  *balancer
	socket    io.Closer
	changed   func()      // called when the backends change; optional
	suspended atomic.Bool // not listening without backends: the kernel rejects clients
	reserved  map[netip.AddrPort]io.Closer
	closed    chan struct{}
}

// Open opens a listener at its address. If that port is in use, it tries the ports that elsewhere
// yields; 0 is any port. It returns the listener's address. An open listener at another address is
// replaced, and closed by CloseReplaced.
func (p *Proxy) Open(f ir.Family, want *rules.Listener, elsewhere func(yield func(uint16) bool)) (netip.AddrPort, error) {
	key := KeyOf(f, want)
	old := p.get(key)
	if old != nil && old.at == want.Listen {
		return old.at, nil
	}
	if !p.acquireSocket(old != nil) { // a replaced listener is closed soon
		return netip.AddrPort{}, p.errSockets()
	}
	l := &listener{key: key, balancer: p.balancerOf(key), reserved: map[netip.AddrPort]io.Closer{}, closed: make(chan struct{})}
	l.balancer.set(want.Backends, want.Affinity)
	serve, err := p.listen(l, want.Listen)
	first := err
	if isPortTaken(err) && elsewhere != nil {
		for port := range elsewhere {
			if serve, err = p.listen(l, netip.AddrPortFrom(want.Listen.Addr(), port)); !isPortTaken(err) {
				break
			}
		}
	}
	if err != nil {
		p.releaseBalancer(l)
		p.releaseSockets(1)
		if isPortTaken(err) {
			err = first // contains the requested port
		}
		return netip.AddrPort{}, err
	}
	p.mu.Lock()
	p.listeners[key] = l
	if old != nil {
		p.replaced = append(p.replaced, old)
		l.reserved, old.reserved = old.reserved, nil
	}
	p.mu.Unlock()
	p.work.Go(serve)
	p.suspend(l, len(want.Backends) == 0)
	return l.at, nil
}

// acquireSocket counts one more listener socket, and returns false if the limit is reached.
func (p *Proxy) acquireSocket(always bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Listeners > 0 && p.sockets >= p.Listeners && !always {
		return false
	}
	p.sockets++
	return true
}

func (p *Proxy) releaseSockets(n int) {
	p.mu.Lock()
	p.sockets -= n
	p.mu.Unlock()
}

func (p *Proxy) errSockets() error {
	return fmt.Errorf("the process may have %d sockets for listeners, and all are in use", p.Listeners)
}

// balancerOf returns the balancer of a listener's service port, and counts its user.
func (p *Proxy) balancerOf(k Key) *balancer {
	k.At = netip.AddrPort{}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.balancers[k]
	if b == nil {
		b = &balancer{}
		p.balancers[k] = b
	}
	b.users++
	return b
}

// releaseBalancer releases the balancer of a listener.
func (p *Proxy) releaseBalancer(l *listener) {
	k := l.key
	k.At = netip.AddrPort{}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.balancer.users--; l.balancer.users == 0 {
		delete(p.balancers, k)
	}
}

// suspend makes a listener without backends keep its port without listening, so that clients are
// rejected immediately. With on false the listener accepts again.
func (p *Proxy) suspend(l *listener, on bool) {
	if l.suspended.Load() == on {
		return
	}
	do := p.suspendTCP
	if l.key.Port.Protocol == ir.UDP {
		do = p.suspendUDP
	}
	switch err := do(l, on); {
	case err == nil:
		l.suspended.Store(on)
	case !errors.Is(err, errors.ErrUnsupported): // otherwise connections are accepted and reset
		p.warn("a listener does not follow its backends", "servicePort", l.key.Port.String(), "listen", l.at.String(), "err", err)
	}
}

// CloseReplaced closes replaced listeners. No rule may redirect to them any more.
func (p *Proxy) CloseReplaced() {
	p.mu.Lock()
	aside := p.replaced
	p.replaced = nil
	p.mu.Unlock()
	for _, l := range aside {
		p.closeListener(l)
	}
}

// listen opens the socket of a listener, and returns the function that serves it.
func (p *Proxy) listen(l *listener, at netip.AddrPort) (serve func(), err error) {
	switch l.key.Port.Protocol {
	case ir.TCP:
		return p.listenTCP(l, at)
	case ir.UDP:
		return p.listenUDP(l, at)
	}
	return nil, fmt.Errorf("protocol must be tcp or udp, got %s", l.key.Port.Protocol)
}

// network returns the network name of a key for package net.
func network(k Key) string {
	if k.Family == ir.IPv6 {
		return k.Port.Protocol.String() + "6"
	}
	return k.Port.Protocol.String() + "4"
}

func (p *Proxy) get(k Key) *listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listeners[k]
}

// Status reports whether a listener is open, and whether it has the desired backends.
func (p *Proxy) Status(f ir.Family, want *rules.Listener) (open, same bool) {
	l := p.get(KeyOf(f, want))
	if l == nil {
		return false, false
	}
	return true, l.balancer.same(want.Backends, want.Affinity)
}

// At returns the address of a listener; ok is false if it is not open.
func (p *Proxy) At(k Key) (at netip.AddrPort, ok bool) {
	if l := p.get(k); l != nil {
		return l.at, true
	}
	return at, false
}

// Update changes the backends of an open listener. TCP connections to removed backends continue;
// UDP clients of removed backends receive another.
func (p *Proxy) Update(f ir.Family, want *rules.Listener) {
	l := p.get(KeyOf(f, want))
	if l == nil {
		return
	}
	l.balancer.set(want.Backends, want.Affinity)
	if l.changed != nil {
		l.changed()
	}
	p.suspend(l, len(want.Backends) == 0)
}

// Reserve makes a listener hold exactly these sockets. The error names those that another program
// has; the others are held.
func (p *Proxy) Reserve(f ir.Family, name ir.ServicePort, at []netip.AddrPort) error {
	l := p.get(Key{Family: f, Port: name})
	if l == nil {
		return nil
	}
	var errs []error
	keep := make(map[netip.AddrPort]bool, len(at))
	for _, a := range at {
		keep[a] = true
		if l.reserved[a] != nil {
			continue
		}
		if !p.acquireSocket(false) {
			errs = append(errs, fmt.Errorf("%s/%s: %w", a, name.Protocol, p.errSockets()))
			continue
		}
		s, err := reserve(l.key, a)
		if err != nil {
			p.releaseSockets(1)
			errs = append(errs, fmt.Errorf("%s/%s: %w", a, name.Protocol, err))
			continue
		}
		l.reserved[a] = s
	}
	for a, s := range l.reserved {
		if !keep[a] {
			s.Close()
			delete(l.reserved, a)
			p.releaseSockets(1)
		}
	}
	return errors.Join(errs...)
}

// CloseListener closes a listener and its held sockets. Its TCP connections continue.
func (p *Proxy) CloseListener(k Key) {
	p.mu.Lock()
	l := p.listeners[k]
	delete(p.listeners, k)
	p.mu.Unlock()
	if l != nil {
		p.closeListener(l)
	}
}

func (p *Proxy) closeListener(l *listener) {
	p.releaseBalancer(l)
	close(l.closed)
	l.socket.Close()
	for _, s := range l.reserved {
		s.Close()
	}
	p.releaseSockets(1 + len(l.reserved))
}

// Keys returns the open listeners.
func (p *Proxy) Keys() []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := make([]Key, 0, len(p.listeners))
	for k := range p.listeners {
		keys = append(keys, k)
	}
	return keys
}

// Close closes all listeners and waits for TCP connections to end until ctx ends. It then closes
// the remaining ones and returns their number. A read-only dataplane has a nil Proxy, for which
// Close does nothing.
func (p *Proxy) Close(ctx context.Context) (cut int) {
	if p == nil {
		return 0
	}
	for _, k := range p.Keys() {
		p.CloseListener(k)
	}
	p.CloseReplaced()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.work.Wait()
	}()
	select {
	case <-done:
		return 0
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.aborting, cut = true, len(p.connections)
	for c := range p.connections {
		c.abort()
	}
	p.mu.Unlock()
	<-done
	return cut
}

// logEvery is the shortest interval of log messages about reached limits.
const logEvery = time.Minute

// warn logs a warning, at most once per logEvery.
func (p *Proxy) warn(msg string, args ...any) {
	if p.Log == nil {
		return
	}
	p.mu.Lock()
	now := time.Now()
	quiet := now.Sub(p.lastWarning) < logEvery
	if !quiet {
		p.lastWarning = now
	}
	p.mu.Unlock()
	if !quiet {
		p.Log.Warn(msg, args...)
	}
}

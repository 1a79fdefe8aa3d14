package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
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

// Compare orders Keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Family, o.Family), k.Port.Compare(o.Port), k.At.Compare(o.At))
}

// Proxy serves listeners. Its methods are safe for concurrent use, except that only one goroutine
// at a time may change listeners.
type Proxy struct {
	Options
	connections connections    // of TCP clients
	sessions    atomic.Int64   // number of UDP sessions
	idle        atomic.Int64   // current UDPIdle in nanoseconds
	sockets     socketLimit    // of listeners, including reserved ones
	warnings    warnings       // about reached limits
	work        sync.WaitGroup // all goroutines

	mu        sync.Mutex
	listeners map[Key]*listener
	balancers map[Key]*balancer // by service port, shared by its listeners

	counts ir.PerFamily[[2]counts] // of TCP and UDP
}

// counts are the counters for apply.Proxied.
type counts struct {
	clients                                              atomic.Int64
	accepted, dialFailures, unreachable, waited, dropped atomic.Uint64
}

// NewProxy returns a Proxy without listeners.
func NewProxy(o Options) *Proxy {
	p := &Proxy{Options: o, listeners: map[Key]*listener{}, balancers: map[Key]*balancer{},
		connections: connections{slots: make(chan struct{}, o.Connections), open: map[*connection]bool{}},
		sockets:     socketLimit{limit: o.Listeners}, warnings: warnings{log: o.Log}}
	p.SetUDPIdle(o.UDPIdle)
	return p
}

// SetUDPIdle changes UDPIdle for all clients.
func (p *Proxy) SetUDPIdle(d time.Duration) { p.idle.Store(int64(d)) }

// Counts returns the counters of each family and protocol.
func (p *Proxy) Counts() []apply.Proxied {
	listening := map[*counts]int{}
	p.mu.Lock()
	for _, l := range p.listeners {
		if !l.suspended.Load() {
			listening[l.counts]++
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

// Carried returns the number of TCP connections, for which Drain would wait.
func (p *Proxy) Carried() int {
	return len(p.connections.slots)
}

// listener is a port with its balancer and held sockets.
type listener struct {
	proxy     *Proxy
	counts    *counts // of its family and protocol
	key       Key
	at        netip.AddrPort
	balancer  *balancer
	socket    io.Closer
	changed   func()      // called when the backends change; optional
	suspended atomic.Bool // not listening without backends: the kernel rejects clients
	reserved  map[netip.AddrPort]io.Closer
	closed    chan struct{}
}

// Open opens a listener at its address, or changes the backends of an open one. TCP connections to
// removed backends continue; UDP clients of removed backends receive another. If the port is in use,
// Open tries the ports that elsewhere yields; 0 is any port. It returns the listener's address. After an
// error the listener is closed.
func (p *Proxy) Open(f ir.Family, want *rules.Listener, elsewhere func(yield func(uint16) bool)) (netip.AddrPort, error) {
	key := KeyOf(f, want)
	old := p.get(key)
	if old != nil && old.at == want.Listen {
		err := old.update(want)
		if err == nil {
			return old.at, nil
		}
		p.warnings.warn("a listener no longer listens: opening it again", "servicePort", key.Port.String(), "listen", old.at.String(), "err", err)
	}
	p.CloseListener(key)
	if err := p.sockets.acquire(); err != nil {
		return netip.AddrPort{}, err
	}
	l := p.newListener(key)
	l.balancer.set(want.Backends, want.Affinity)
	serve, err := l.listen(want.Listen)
	first := err
	if isPortTaken(err) && elsewhere != nil {
		for port := range elsewhere {
			if serve, err = l.listen(netip.AddrPortFrom(want.Listen.Addr(), port)); !isPortTaken(err) {
				break
			}
		}
	}
	if err != nil {
		l.releaseBalancer()
		p.sockets.release(1)
		if isPortTaken(err) {
			err = first // contains the requested port
		}
		return netip.AddrPort{}, err
	}
	p.mu.Lock()
	p.listeners[key] = l
	p.mu.Unlock()
	p.work.Go(serve)
	if err := l.suspend(len(want.Backends) == 0); err != nil {
		p.CloseListener(key)
		return netip.AddrPort{}, err
	}
	return l.at, nil
}

// update changes the backends. After an error the listener does not listen.
func (l *listener) update(want *rules.Listener) error {
	l.balancer.set(want.Backends, want.Affinity)
	if l.changed != nil {
		l.changed()
	}
	return l.suspend(len(want.Backends) == 0)
}

// newListener returns a listener that is not open, with the balancer of its service port.
func (p *Proxy) newListener(key Key) *listener {
	counts := p.counts.At(key.Family)
	l := &listener{proxy: p, key: key, counts: &counts[0], reserved: map[netip.AddrPort]io.Closer{}, closed: make(chan struct{})}
	if key.Port.Protocol == ir.UDP {
		l.counts = &counts[1]
	}
	key.At = netip.AddrPort{}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.balancer = p.balancers[key]; l.balancer == nil {
		l.balancer = &balancer{}
		p.balancers[key] = l.balancer
	}
	l.balancer.users++
	return l
}

func (l *listener) releaseBalancer() {
	k := l.key
	k.At = netip.AddrPort{}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if l.balancer.users--; l.balancer.users == 0 {
		delete(l.proxy.balancers, k)
	}
}

// suspend makes a listener without backends keep its port without listening, so that clients are
// rejected immediately. With on false the listener accepts again. After an error it does not listen.
func (l *listener) suspend(on bool) error {
	if l.suspended.Load() == on {
		return nil
	}
	do := l.suspendTCP
	if l.key.Port.Protocol == ir.UDP {
		do = l.suspendUDP
	}
	switch err := do(on); {
	case err == nil:
		l.suspended.Store(on)
	case !on || errors.Is(err, errClosed):
		return err
	case !errors.Is(err, errors.ErrUnsupported): // connections are accepted and reset
		l.proxy.warnings.warn("a listener without backends still listens", "servicePort", l.key.Port.String(), "listen", l.at.String(), "err", err)
	}
	return nil
}

// errClosed is the error of a listener that neither listens nor holds its port.
var errClosed = errors.New("its socket is closed")

// listen opens the socket of a listener, and returns the function that serves it.
func (l *listener) listen(at netip.AddrPort) (serve func(), err error) {
	switch l.key.Port.Protocol {
	case ir.TCP:
		return l.listenTCP(at)
	case ir.UDP:
		return l.listenUDP(at)
	}
	return nil, fmt.Errorf("protocol must be tcp or udp, got %s", l.key.Port.Protocol)
}

// network returns the network name of a key for package net.
func network(k Key) string { return k.Port.Protocol.String() + ir.Pick(k.Family, "4", "6") }

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
		err := p.sockets.acquire()
		var s io.Closer
		if err == nil {
			if s, err = reserve(l.key, a); err != nil {
				p.sockets.release(1)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s/%s: %w", a, name.Protocol, err))
			continue
		}
		l.reserved[a] = s
	}
	for a, s := range l.reserved {
		if !keep[a] {
			s.Close()
			delete(l.reserved, a)
			p.sockets.release(1)
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
		l.close()
	}
}

func (l *listener) close() {
	l.releaseBalancer()
	close(l.closed)
	l.socket.Close()
	for _, s := range l.reserved {
		s.Close()
	}
	l.proxy.sockets.release(1 + len(l.reserved))
}

// Keys returns the open listeners.
func (p *Proxy) Keys() []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.listeners))
}

// CloseListeners closes all listeners. TCP connections continue.
func (p *Proxy) CloseListeners() {
	for _, k := range p.Keys() {
		p.CloseListener(k)
	}
}

// Drain closes all listeners and waits for TCP connections to end until ctx ends. It then closes
// the remaining ones and returns their number.
func (p *Proxy) Drain(ctx context.Context) (cut int) {
	p.CloseListeners()
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
	cut = p.connections.abort()
	<-done
	return cut
}

// socketLimit bounds the number of sockets.
type socketLimit struct {
	limit int // 0 is no limit
	mu    sync.Mutex
	used  int
}

// acquire counts one more socket, or returns an error if the limit is reached.
func (s *socketLimit) acquire() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 && s.used >= s.limit {
		return fmt.Errorf("the process has reached its limit of %d listener sockets", s.limit)
	}
	s.used++
	return nil
}

func (s *socketLimit) release(n int) {
	s.mu.Lock()
	s.used -= n
	s.mu.Unlock()
}

// logEvery is the shortest interval of log messages about reached limits.
const logEvery = time.Minute

// warnings logs at most one warning per logEvery.
type warnings struct {
	log  *slog.Logger // optional
	mu   sync.Mutex
	last time.Time
}

func (w *warnings) warn(msg string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); w.log != nil && now.Sub(w.last) >= logEvery {
		w.last = now
		w.log.Warn(msg, args...)
	}
}

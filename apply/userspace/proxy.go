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

// Limits bound what a Proxy carries at once.
type Limits struct {
	// Connections is how many TCP connections are carried. Who comes when there
	// are as many waits in the kernel's queue.
	Connections int
	// Sessions is how many UDP clients have a socket. What others send is dropped
	// until one falls silent.
	Sessions int
	// Listeners is how many sockets listeners may have, those that they hold included:
	// a service port beyond has none. 0: any number.
	Listeners int
}

// Options say how a Proxy works.
type Options struct {
	Limits
	// DialTimeouts are the patience of the first, second, … attempt to reach a
	// backend of a TCP connection, each with the next one (USR-5).
	DialTimeouts []time.Duration
	UDPIdle      time.Duration // how long a silent UDP client keeps its backend
	// Suffixes are tried, one after the other, with names that a DNS service does
	// not know; the first may be empty. None: names are left alone (USR-21).
	Suffixes []string
	Log      *slog.Logger // nil: nobody is told
}

// DefaultLimits are those of mode userspace, as far as the process may have as
// many descriptors.
var DefaultLimits = Limits{Connections: 10000, Sessions: 10000}

// Key names a listener.
type Key struct {
	Family ir.Family
	Port   ir.ServicePort
	At     netip.AddrPort // of a listener that serves one frontend; zero: of one that serves all of the service port
}

// KeyOf names a listener.
func KeyOf(f ir.Family, l *rules.Listener) Key {
	k := Key{Family: f, Port: l.Port}
	if l.Frontend != nil {
		k.At = l.Listen
	}
	return k
}

// Compare orders Keys of a family.
func (k Key) Compare(o Key) int { return cmp.Or(k.Port.Compare(o.Port), k.At.Compare(o.At)) }

// Proxy serves listeners. Its methods may be called by several goroutines; what
// changes listeners is called by one at a time.
type Proxy struct {
	Options
	slots    chan struct{} // one for each TCP connection under way
	sessions atomic.Int64  // of UDP clients
	idle     atomic.Int64  // UDPIdle as it is now

	mu        sync.Mutex
	listeners map[Key]*listener
	balancers map[Key]*balancer // of service ports: their listeners take turns together
	aside     []*listener       // others have taken their place
	sockets   int               // of listeners, with those that are held
	carried   map[*carried]bool // TCP connections
	cutting   bool              // whoever comes now is too late
	told      time.Time         // when the log last heard of a limit
	work      sync.WaitGroup    // all goroutines

	counts ir.PerFamily[[2]counts] // of TCP and UDP
}

// counts are the numbers of apply.Proxied.
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
		listeners: map[Key]*listener{}, balancers: map[Key]*balancer{}, carried: map[*carried]bool{}}
	p.SetUDPIdle(o.UDPIdle)
	return p
}

// SetUDPIdle changes UDPIdle for all clients.
func (p *Proxy) SetUDPIdle(d time.Duration) { p.idle.Store(int64(d)) }

// Counts returns the numbers as they are now, of each family and protocol.
func (p *Proxy) Counts() []apply.Proxied {
	listening := map[*counts]int{}
	p.mu.Lock()
	for k, l := range p.listeners {
		if !l.parked.Load() {
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

// Connections returns how many TCP connections are under way: none without a Proxy.
func (p *Proxy) Connections() int {
	if p == nil {
		return 0
	}
	return len(p.slots)
}

// listener is a port, what serves it, and the sockets that it holds.
type listener struct {
	key      Key
	at       netip.AddrPort
	balancer *balancer
	socket   io.Closer
	changed  func()      // what is to be done when the backends are others; nil: nothing
	parked   atomic.Bool // nobody listens, as there is no backend: the kernel refuses
	hold     map[netip.AddrPort]io.Closer
	closed   chan struct{}
}

// Open opens a listener where it wants to be, or, if that port is taken, where
// elsewhere leads: at ports that it yields, 0 standing for any. It returns where
// it is. One that is open elsewhere than it wants to be is put aside, until Tidy.
func (p *Proxy) Open(f ir.Family, want *rules.Listener, elsewhere func(yield func(uint16) bool)) (netip.AddrPort, error) {
	key := KeyOf(f, want)
	old := p.get(key)
	if old != nil && old.at == want.Listen {
		return old.at, nil
	}
	if !p.takeSocket(old != nil) { // where one moves, the other goes soon
		return netip.AddrPort{}, p.errSockets()
	}
	l := &listener{key: key, balancer: p.balancerOf(key), hold: map[netip.AddrPort]io.Closer{}, closed: make(chan struct{})}
	l.balancer.set(want.Backends, want.Affinity)
	serve, err := p.listen(l, want.Listen)
	first := err
	if taken(err) && elsewhere != nil {
		for port := range elsewhere {
			if serve, err = p.listen(l, netip.AddrPortFrom(want.Listen.Addr(), port)); !taken(err) {
				break
			}
		}
	}
	if err != nil {
		p.leave(l)
		p.giveSockets(1)
		if taken(err) {
			err = first // names the port that was wanted
		}
		return netip.AddrPort{}, err
	}
	p.mu.Lock()
	p.listeners[key] = l
	if old != nil {
		p.aside = append(p.aside, old)
		l.hold, old.hold = old.hold, nil
	}
	p.mu.Unlock()
	p.work.Go(serve)
	p.park(l, len(want.Backends) == 0)
	return l.at, nil
}

// takeSocket counts one more socket of a listener, and reports whether it may be had.
func (p *Proxy) takeSocket(always bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Listeners > 0 && p.sockets >= p.Listeners && !always {
		return false
	}
	p.sockets++
	return true
}

func (p *Proxy) giveSockets(n int) {
	p.mu.Lock()
	p.sockets -= n
	p.mu.Unlock()
}

func (p *Proxy) errSockets() error {
	return fmt.Errorf("the process may have %d sockets for listeners, and all are in use", p.Listeners)
}

// balancerOf returns the balancer of a listener's service port, for one more listener.
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

// leave tells that a listener needs its balancer no longer.
func (p *Proxy) leave(l *listener) {
	k := l.key
	k.At = netip.AddrPort{}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.balancer.users--; l.balancer.users == 0 {
		delete(p.balancers, k)
	}
}

// park has a listener that leads nowhere keep its port without listening there,
// so that clients are refused at once, and listen again when it leads somewhere.
func (p *Proxy) park(l *listener, on bool) {
	if l.parked.Load() == on {
		return
	}
	do := p.parkTCP
	if l.key.Port.Protocol == ir.UDP {
		do = p.parkUDP
	}
	switch err := do(l, on); {
	case err == nil:
		l.parked.Store(on)
	case !errors.Is(err, errors.ErrUnsupported): // then clients are taken, and hung up on
		p.complain("a listener does not follow its backends", "servicePort", l.key.Port.String(), "listen", l.at.String(), "err", err)
	}
}

// Tidy shuts what was put aside: no rule leads there any longer.
func (p *Proxy) Tidy() {
	p.mu.Lock()
	aside := p.aside
	p.aside = nil
	p.mu.Unlock()
	for _, l := range aside {
		p.shut(l)
	}
}

// listen opens the socket of a listener, and returns what serves it.
func (p *Proxy) listen(l *listener, at netip.AddrPort) (serve func(), err error) {
	switch l.key.Port.Protocol {
	case ir.TCP:
		return p.listenTCP(l, at)
	case ir.UDP:
		return p.listenUDP(l, at)
	}
	return nil, fmt.Errorf("protocol must be tcp or udp, got %s", l.key.Port.Protocol)
}

// network is Go's name of a protocol in a family.
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

// Leads reports whether a listener is open and leads where it should.
func (p *Proxy) Leads(f ir.Family, want *rules.Listener) (open, same bool) {
	l := p.get(KeyOf(f, want))
	if l == nil {
		return false, false
	}
	return true, l.balancer.same(want.Backends, want.Affinity)
}

// At returns where a listener is; ok is false where it is not open.
func (p *Proxy) At(k Key) (at netip.AddrPort, ok bool) {
	if l := p.get(k); l != nil {
		return l.at, true
	}
	return at, false
}

// Update leads an open listener elsewhere. TCP connections to backends that are
// gone go on; UDP clients of such choose anew.
func (p *Proxy) Update(f ir.Family, want *rules.Listener) {
	l := p.get(KeyOf(f, want))
	if l == nil {
		return
	}
	l.balancer.set(want.Backends, want.Affinity)
	if l.changed != nil {
		l.changed()
	}
	p.park(l, len(want.Backends) == 0)
}

// Hold has a listener hold just these sockets. What cannot be held, since
// another program has it, is named in the error; the others are.
func (p *Proxy) Hold(f ir.Family, name ir.ServicePort, at []netip.AddrPort) error {
	l := p.get(Key{Family: f, Port: name})
	if l == nil {
		return nil
	}
	var errs []error
	keep := make(map[netip.AddrPort]bool, len(at))
	for _, a := range at {
		keep[a] = true
		if l.hold[a] != nil {
			continue
		}
		if !p.takeSocket(false) {
			errs = append(errs, fmt.Errorf("%s/%s: %w", a, name.Protocol, p.errSockets()))
			continue
		}
		s, err := hold(l.key, a)
		if err != nil {
			p.giveSockets(1)
			errs = append(errs, fmt.Errorf("%s/%s: %w", a, name.Protocol, err))
			continue
		}
		l.hold[a] = s
	}
	for a, s := range l.hold {
		if !keep[a] {
			s.Close()
			delete(l.hold, a)
			p.giveSockets(1)
		}
	}
	return errors.Join(errs...)
}

// Shut closes a listener and what it holds. TCP connections that it took go on.
func (p *Proxy) Shut(k Key) {
	p.mu.Lock()
	l := p.listeners[k]
	delete(p.listeners, k)
	p.mu.Unlock()
	if l != nil {
		p.shut(l)
	}
}

func (p *Proxy) shut(l *listener) {
	p.leave(l)
	close(l.closed)
	l.socket.Close()
	for _, s := range l.hold {
		s.Close()
	}
	p.giveSockets(1 + len(l.hold))
}

// Keys are the listeners that are open.
func (p *Proxy) Keys() []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := make([]Key, 0, len(p.listeners))
	for k := range p.listeners {
		keys = append(keys, k)
	}
	return keys
}

// Close shuts all listeners, lets TCP connections go on until ctx ends, and cuts
// off those that are left. It returns how many these were. A dataplane that only
// looks has no Proxy, and nothing to close.
func (p *Proxy) Close(ctx context.Context) (cut int) {
	if p == nil {
		return 0
	}
	for _, k := range p.Keys() {
		p.Shut(k)
	}
	p.Tidy()
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
	p.cutting, cut = true, len(p.carried)
	for c := range p.carried {
		c.cut()
	}
	p.mu.Unlock()
	<-done
	return cut
}

// logEvery is how often the log hears of limits that are reached.
const logEvery = time.Minute

// complain tells the log, now and then.
func (p *Proxy) complain(msg string, args ...any) {
	if p.Log == nil {
		return
	}
	p.mu.Lock()
	now := time.Now()
	quiet := now.Sub(p.told) < logEvery
	if !quiet {
		p.told = now
	}
	p.mu.Unlock()
	if !quiet {
		p.Log.Warn(msg, args...)
	}
}
